"""Configs, checkpoints and weights of earlier versions."""

import importlib
import json

import numpy as np
import pytest

from lavae_jax import compatibility, model_files
from lavae_jax.training import files


@pytest.mark.parametrize("name", model_files.names())
def test_the_config_of_shipped_weights_is_that_of_its_recipe(name):
    """The weights were trained by earlier versions."""
    old = json.loads((model_files.SHIPPED / name / "config.json").read_text())
    recipe = importlib.import_module(f"lavae_jax.recipes.{old['name']}")
    new = files.plain(recipe.get_config(old["recipe"]))
    if "start_from" in new:
        new["start_from"] = old["start_from"]
    assert files.difference(compatibility.upgrade_config(old), new) == []


def test_a_config_of_the_paper_s_training_is_upgraded():
    old = {
        "kind": "lavae",
        "num_train_steps": 100,
        "optimizer": {"learning_rate": 0.5, "decay_steps": 100},
        "model": {"taken_radius": 8, "location": {"blurred": True}},
        "curriculum": {
            **{"kind": "joint", "warmup_steps": 20, "anneal_steps": 10},
            **{"auxiliary_weight": 1.0, "force_one_end": 0.1, "temperature": {"steps": 9}},
        },
    }
    assert compatibility.upgrade_config(old) == {
        "kind": "lavae",
        "num_train_steps": 100,
        "optimizer": {"learning_rate": 0.5, "schedule": "cosine"},
        "model": {"exclusion_radius": 8, "location": {"blur_logits": True}},
        "curriculum": {
            "phases": ["warmup", "elbo"],
            "warmup": {
                **{"steps": 30, "anneal_steps": 10, "auxiliary_weight": 1.0, "force_one_end": 0.1}
            },
            "elbo": {"steps": 70},
            "temperature": {"steps": 9},
        },
    }


def test_an_old_appearance_phase_has_the_steps_that_the_others_leave():
    """100 steps, of which 10, 20 and 30 are those of other phases."""
    for mixture, left in (({}, 70), ({"mixture": {"steps": 30}}, 40)):
        old = {
            "num_train_steps": 100,
            "optimizer": {"learning_rate": 0.5, "decay_steps": 0},
            "curriculum": {
                **{"kind": "phased", "auxiliary": {"steps": 10}, "peaks": {"steps": 20}},
                **mixture,
            },
        }
        curriculum = compatibility.upgrade_config(old)["curriculum"]
        assert curriculum["phases"] == ["auxiliary", "peaks", "appearance", *mixture]
        assert curriculum["appearance"] == {"steps": left, "learning_rate": 0.5}


@pytest.mark.parametrize("name", ["mnist1k", "baseline_mnist1k", "dsprites_mixture"])
def test_a_config_of_this_version_stays_as_it_is(name):
    config = model_files.read_config(model_files.SHIPPED / name).to_dict()
    assert compatibility.upgrade_config(config) == config


def test_arrays_of_earlier_versions_have_new_names():
    names = {
        "params.count": "params.count_logits",
        "state.params.lavae.count": "state.params.lavae.count_logits",
        "state.opt_state.lavae.count.count": "state.opt_state.lavae.count_logits.count",
        "state.opt_state.lavae.count.mu": "state.opt_state.lavae.count_logits.mu",
        "state.params.started_at": "state.saved.mixture.sketches",
        "state.opt_state.auxiliary.count": "state.opt_state.auxiliary.count",
    }
    upgraded = compatibility.upgrade_arrays({name: np.zeros(1) for name in names})
    assert list(upgraded) == list(names.values())
    assert list(compatibility.upgrade_arrays(upgraded)) == list(names.values())
