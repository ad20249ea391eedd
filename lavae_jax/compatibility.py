"""Upgrades configs and arrays that earlier versions wrote."""

from typing import Any

import numpy as np

_RENAMED = {  # fields, by the path of their part of the config
    "model": {"counted_from": "min_object_probability", "taken_radius": "exclusion_radius"},
    "model.location": {"blurred": "blur_logits"},
    "budget": {"places": "objects_per_image"},
    "curriculum.peaks": {
        "turned": "augmented_share",
        "weight": "positive_weight",
        "which_weight": "localisation_weight",
    },
}


def upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    """Upgrades a config to the form of this version.

    Args:
        config: the config of a run, written by any version.

    Returns:
        A new config; its content is unchanged if this version wrote it.
    """
    config = dict(config)
    if "phases" not in config.get("curriculum", {"phases"}):
        config = _with_lavae_phases(config)
    if "crops" in config:
        config = _with_baseline_phases(config)
    if config.get("model", {}).get("architecture") == "attentive":
        kept = {k: v for k, v in config["model"].items() if k != "space_to_depth"}
        config["model"] = {**kept, "architecture": "glimpse"}
    if "sleep" in config.get("curriculum", {}):
        sleep = {"distorted_share": 0.0, **config["curriculum"]["sleep"]}
        config["curriculum"] = {**config["curriculum"], "sleep": sleep}
    for path, names in _RENAMED.items():
        config = _rename(config, path.split("."), names)
    return config


def _with_lavae_phases(config: dict[str, Any]) -> dict[str, Any]:
    curriculum, optimizer = dict(config.pop("curriculum")), config.pop("optimizer")
    total, kind = config["num_train_steps"], curriculum.pop("kind")
    if kind == "joint":
        anneal = curriculum.pop("anneal_steps")
        before = curriculum.pop("warmup_steps") + anneal
        warmup = {"steps": before, "anneal_steps": anneal}
        warmup |= {name: curriculum.pop(name) for name in ("auxiliary_weight", "force_one_end")}
        phases = {"warmup": warmup, "elbo": {"steps": max(total - before, 0)}}
        config["optimizer"] = _optimizer(optimizer)
    else:
        before = curriculum["auxiliary"]["steps"] + curriculum["peaks"]["steps"]
        later = curriculum.get("mixture", {"steps": 0})["steps"]
        steps = optimizer["decay_steps"] or total - before - later
        appearance = {"steps": steps, "learning_rate": optimizer["learning_rate"]}
        phases = {"auxiliary": curriculum.pop("auxiliary"), "peaks": curriculum.pop("peaks")}
        phases |= {"appearance": appearance}
        phases |= {"mixture": curriculum.pop("mixture")} if "mixture" in curriculum else {}
    return {**config, "curriculum": {"phases": list(phases), **phases, **curriculum}}


def _with_baseline_phases(config: dict[str, Any]) -> dict[str, Any]:
    crops = config.pop("crops")
    phases = {"crops": crops, "elbo": {"steps": config["num_train_steps"] - crops["steps"]}}
    curriculum = {"phases": list(phases), **phases, "beta": config.pop("beta")}
    return {**config, "curriculum": curriculum, "optimizer": _optimizer(config["optimizer"])}


def _optimizer(optimizer: dict[str, Any]) -> dict[str, Any]:
    schedule = "cosine" if optimizer["decay_steps"] else "constant"
    return {"learning_rate": optimizer["learning_rate"], "schedule": schedule}


def _rename(config: dict[str, Any], path: list[str], names: dict[str, str]) -> dict[str, Any]:
    if not path:
        return {names.get(name, name): value for name, value in config.items()}
    first, *rest = path
    if not isinstance(config.get(first), dict):
        return config
    return {**config, first: _rename(config[first], rest, names)}


def upgrade_arrays(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gives arrays the names of this version.

    Args:
        arrays: arrays of a checkpoint or of exported weights, written by any version.

    Returns:
        The same arrays by their new names.
    """
    return {_array_name(name): array for name, array in arrays.items()}


def _array_name(name: str) -> str:
    if name == "state.params.started_at":
        return "state.saved.mixture.sketches"
    if name in ("params.count", "state.params.lavae.count"):
        return name + "_logits"
    return name.replace("state.opt_state.lavae.count.", "state.opt_state.lavae.count_logits.", 1)
