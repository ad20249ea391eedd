"""What is trained: LAVAE, or the baseline. The training loop knows neither.

A task is a handful of pure functions. Its parameters are one tree whose top level
names the parts; the same for batch statistics.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from ml_collections import ConfigDict

from lavae_jax import (
    bernoulli,
    counting,
    inference,
    model,
    objective,
    schedules,
    vae,
    warmup,
)
from lavae_jax.model import ModelConfig, Variables
from lavae_jax.networks import AppearanceConfig, DecoderConfig, LocationConfig
from lavae_jax.vae import AuxiliaryConfig, BaselineConfig

Metrics = dict[str, jax.Array]


class Explanation(NamedTuple):
    """Images as a model sees them, to be drawn."""

    reconstruction: jax.Array  # [B, H, W, C]
    count: jax.Array | None = None  # [B]
    index: jax.Array | None = None  # [B, S]: pixels
    sprites: jax.Array | None = None  # [B, S, h, w, C]


class Phase(NamedTuple):
    """A stretch of training with a loss of its own.

    loss(params, batch_stats, x, keys, step, axis_name=) ->
        (loss, (batch_stats, metrics)), both means over the images x [B, H, W, C].
    end: its last step; None for the last phase, which ends with the training.
    """

    name: str
    loss: Callable[..., tuple[jax.Array, tuple[Any, Metrics]]]
    end: int | None = None


class Task(NamedTuple):
    """
    init(key) -> Variables.
    phases: one after the other.
    evaluate(variables, x, count, keys) -> metrics of each image, [B] each.
    explain(variables, x) -> Explanation.
    learning_rates: a schedule for each group of parameters.
    group(path) -> the group of a parameter, by its path in the tree.
    """

    init: Callable[..., Variables]
    phases: tuple[Phase, ...]
    evaluate: Callable[..., Metrics]
    explain: Callable[..., Explanation]
    learning_rates: dict[str, optax.Schedule]
    group: Callable[[str], str]

    def phase_at(self, step: int) -> Phase:
        """The phase that a step, counted from 1, belongs to."""
        return next(p for p in self.phases if p.end is None or step <= p.end)


def make(config: ConfigDict) -> Task:
    return {"lavae": _lavae, "baseline": _baseline}[config.kind](config)


def model_config(config: ConfigDict) -> ModelConfig:
    """The model's settings out of a config's `model`."""
    fields = config.to_dict()
    for name, cls in (
        ("location", LocationConfig),
        ("appearance", AppearanceConfig),
        ("decoder", DecoderConfig),
    ):
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in fields[name].items()}
        fields[name] = cls(**values)
    return ModelConfig(**fields)


# --- LAVAE -------------------------------------------------------------------


def _lavae(config: ConfigDict) -> Task:
    """Its parts: `lavae`, and the `auxiliary` VAE of the warm-up."""
    settings = model_config(config.model)
    auxiliary = AuxiliaryConfig(**config.auxiliary)
    curricula = {"joint": _joint_warmup, "phased": _phased_warmup}
    if config.warmup.kind not in curricula:
        raise ValueError(f"warmup.kind={config.warmup.kind!r}: there are 'joint', 'phased'")
    phases, learning_rates = curricula[config.warmup.kind](config, settings, auxiliary)

    def init(key):
        ours, theirs = jax.random.split(key)
        parts = {"lavae": model.init(settings, ours), "auxiliary": vae.init(auxiliary, theirs)}
        return Variables(*({k: v[i] for k, v in parts.items()} for i in range(2)))

    def evaluate(variables, x, count, keys):
        out, _ = objective.elbo(settings, _part("lavae", *variables), x, keys)
        return {
            "neg_elbo": -out.terms.elbo,
            "neg_log_likelihood": -out.terms.log_likelihood,
            "kl_count": out.terms.kl_count,
            "kl_location": out.terms.kl_location,
            "kl_appearance": out.terms.kl_appearance,
            "count_accuracy": (out.inferred_count == count).astype(float),
        }

    def explain(variables, x):
        """One hard sample of the posterior, the same at every call."""
        keys = jax.random.split(jax.random.key(0), len(x))
        out, _ = objective.elbo(settings, _part("lavae", *variables), x, keys)
        drawn = out.posterior
        sprites = drawn.objects.scatter(drawn.sprites, len(x), settings.max_objects)
        means = bernoulli.pixel_means(drawn.intensity)
        return Explanation(means, drawn.count, drawn.where.index, sprites)

    def group(path):
        part, network = path.split(".")[:2]
        name = network if part == "lavae" else part
        return name if name in learning_rates else "rest"

    return Task(init, phases, evaluate, explain, learning_rates, group)


def _learning_rate(config, after: int = 0) -> optax.Schedule:
    """From step `after` on; it may not reach 0 before the training ends."""
    rate, steps = config.optimizer.learning_rate, config.optimizer.decay_steps
    if steps and config.num_train_steps > after + steps:
        raise ValueError(
            f"config.num_train_steps={config.num_train_steps}, but the learning rate is 0 from "
            f"step {after + steps} on (config.optimizer.decay_steps={steps}); set both"
        )
    return schedules.cosine(rate, steps)


def _part(name, params, batch_stats) -> Variables:
    return Variables(params[name], batch_stats[name])


def _elbo_loss(config, settings, params, batch_stats, x, keys, **kwargs):
    """-ELBO, new batch statistics, metrics, and what they were made of."""
    lavae = _part("lavae", params, batch_stats)
    places = math.ceil(config.budget.places * len(x))
    budget = objective.Budget(config.budget.slots, places)
    out, new = objective.elbo(settings, lavae, x, keys, budget, train=True, **kwargs)
    loss = -out.terms.elbo.mean()
    metrics = {
        "neg_elbo": loss,
        "neg_log_likelihood": -out.terms.log_likelihood.mean(),
        "kl_count": out.terms.kl_count.mean(),
        "kl_location": out.terms.kl_location.mean(),
        "kl_appearance": out.terms.kl_appearance.mean(),
        "inferred_count": out.inferred_count.mean(),
        "overflow": out.posterior.overflow / len(x),
    }
    return loss, {**batch_stats, "lavae": new.batch_stats}, metrics, out


def _joint_warmup(config, settings, auxiliary):
    """The paper's (App. B): h_loc follows the auxiliary VAE's map beside the ELBO."""
    temperature = schedules.temperature(config.temperature)
    auxiliary_weight = schedules.auxiliary_weight(config.warmup)
    force_one = schedules.force_one(config.warmup)

    def loss(params, batch_stats, x, keys, step, *, axis_name=None, warming_up):
        auxiliary_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        total, batch_stats, metrics, out = _elbo_loss(
            config,
            settings,
            params,
            batch_stats,
            x,
            keys,
            temperature=temperature(step),
            force_one=force_one(step),
            axis_name=axis_name,
        )
        if warming_up:
            theirs = _part("auxiliary", params, batch_stats)
            terms, new = vae.elbo(
                auxiliary, theirs, x, auxiliary_keys, train=True, axis_name=axis_name
            )
            batch_stats = {**batch_stats, "auxiliary": new.batch_stats}
            canvas = x.shape[1:3]
            target = vae.kl_map(terms.kl, auxiliary.cell, canvas)
            metrics["auxiliary_neg_elbo"] = -terms.elbo().mean()
            metrics["auxiliary_distance"] = warmup.distance(
                out.h_loc / settings.gamma_for(canvas), target
            )
            total += metrics["auxiliary_neg_elbo"]
            total += auxiliary_weight(step) * metrics["auxiliary_distance"]
        return total, (batch_stats, metrics)

    phases = (
        Phase(
            "warm-up",
            functools.partial(loss, warming_up=True),
            config.warmup.steps + config.warmup.anneal_steps,
        ),
        Phase("elbo", functools.partial(loss, warming_up=False)),
    )
    rates = {
        "location": schedules.location_learning_rate(config.optimizer),
        "rest": _learning_rate(config),
    }
    return phases, rates


def _phased_warmup(config, settings, auxiliary):
    """Where objects are (see `warmup`), then the ELBO with h_loc as it is.

    Such steps are cheap. With samples on peaks alone, the ELBO has nothing to tell h_loc.
    """
    schooling = config.warmup
    if schooling.peaks.shifts < 1 or auxiliary.cell % schooling.peaks.shifts:
        raise ValueError(
            f"config.warmup.peaks.shifts={schooling.peaks.shifts} must divide {auxiliary.cell}, "
            "the pixels of a latent of the auxiliary VAE"
        )
    end_auxiliary = schooling.auxiliary.steps
    end_peaks = end_auxiliary + schooling.peaks.steps

    def auxiliary_loss(params, batch_stats, x, keys, step, *, axis_name=None):
        theirs = _part("auxiliary", params, batch_stats)
        terms, new = vae.elbo(auxiliary, theirs, x, keys, train=True, axis_name=axis_name)
        loss = -terms.elbo().mean()
        batch_stats = {**batch_stats, "auxiliary": new.batch_stats}
        return loss, (batch_stats, {"auxiliary_neg_elbo": loss})

    def peaks_loss(params, batch_stats, x, keys, step, *, axis_name=None):
        theirs = _part("auxiliary", params, batch_stats)
        kl_map = warmup.mean_kl_map(auxiliary, theirs, x, keys, schooling.peaks.shifts)
        peaks = counting.peaks(kl_map, schooling.peaks.threshold, settings.peak_radius)
        peaks = warmup.centre(peaks, x, settings.sprite_size // 2 - 1, schooling.peaks.centrings)
        ours = _part("lavae", params, batch_stats)
        h_loc, new = inference.location_logits(settings, ours, x, train=True, axis_name=axis_name)
        logits = h_loc / settings.gamma_for(x.shape[1:3]) - settings.threshold
        loss = warmup.detection_loss(logits, peaks, schooling.peaks.weight)
        metrics = {
            "detection_loss": loss,
            "inferred_count": inference.infer_count(settings, h_loc).mean(dtype=float),
            "target_count": peaks.sum((1, 2)).mean(dtype=float),
        }
        return loss, ({**batch_stats, "lavae": new.batch_stats}, metrics)

    def appearance_loss(params, batch_stats, x, keys, step, *, axis_name=None):
        loss, batch_stats, metrics, _ = _elbo_loss(
            config,
            settings,
            params,
            batch_stats,
            x,
            keys,
            freeze_location=True,
            axis_name=axis_name,
        )
        return loss, (batch_stats, metrics)

    phases = (
        Phase("auxiliary", auxiliary_loss, end_auxiliary),
        Phase("peaks", peaks_loss, end_peaks),
        Phase("appearance", appearance_loss),
    )
    still = optax.constant_schedule(0.0)
    rates = {
        "auxiliary": schedules.join(
            (0, optax.constant_schedule(schooling.auxiliary.learning_rate)), (end_auxiliary, still)
        ),
        "location": schedules.join(
            (end_auxiliary, schedules.cosine(schooling.peaks.learning_rate, schooling.peaks.steps)),
            (end_peaks, still),
        ),
        "rest": schedules.join((end_peaks, _learning_rate(config, end_peaks))),
    }
    return phases, rates


# --- the baseline ------------------------------------------------------------


def _baseline(config: ConfigDict) -> Task:
    settings = BaselineConfig(**config.model)
    beta = schedules.beta(config.beta)

    def loss(params, batch_stats, x, keys, step, *, axis_name=None):
        variables = Variables(params, batch_stats)
        terms, new = vae.elbo(settings, variables, x, keys, train=True, axis_name=axis_name)
        metrics = {
            "neg_elbo": -terms.elbo().mean(),
            "neg_log_likelihood": -terms.log_likelihood.mean(),
            "kl": terms.kl.sum((1, 2)).mean(),
        }
        return -terms.elbo(beta(step)).mean(), (new.batch_stats, metrics)

    def evaluate(variables, x, count, keys):
        del count
        terms, _ = vae.elbo(settings, variables, x, keys)
        return {
            "neg_elbo": -terms.elbo(),
            "neg_log_likelihood": -terms.log_likelihood,
            "kl": terms.kl.sum((1, 2)),
        }

    def explain(variables, x):
        return Explanation(vae.reconstruct(settings, variables, x))

    return Task(
        lambda key: vae.init(settings, key),
        (Phase("elbo", loss),),
        evaluate,
        explain,
        learning_rates={"rest": _learning_rate(config)},
        group=lambda path: "rest",
    )
