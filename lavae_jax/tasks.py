"""What is trained: LAVAE, or the baseline. The training loop knows neither.

A task is a handful of pure functions. Its parameters are one tree whose top level
names the parts; the same for batch statistics.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from lavae_jax import bernoulli, model, objective, schedules, vae
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


class Task(NamedTuple):
    """
    init(key) -> Variables.
    loss(params, batch_stats, x, keys, step, warming_up=, axis_name=) ->
        (loss, (batch_stats, metrics)), both means over the images x [B, H, W, C].
    evaluate(variables, x, count, keys) -> metrics of each image, [B] each.
    explain(variables, x) -> Explanation.
    learning_rates: a schedule for each group of parameters.
    group(path) -> the group of a parameter, by its path in the tree.
    warmup_steps: until then `loss` is called with warming_up=True.
    """

    init: Callable[..., Variables]
    loss: Callable[..., tuple[jax.Array, tuple[Any, Metrics]]]
    evaluate: Callable[..., Metrics]
    explain: Callable[..., Explanation]
    learning_rates: dict[str, optax.Schedule]
    group: Callable[[str], str]
    warmup_steps: int


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
    settings = model_config(config.model)
    auxiliary = AuxiliaryConfig(**config.auxiliary)
    temperature = schedules.temperature(config.temperature)
    auxiliary_weight = schedules.auxiliary_weight(config.warmup)
    force_one = schedules.force_one(config.warmup)

    def init(key):
        ours, theirs = jax.random.split(key)
        parts = {"lavae": model.init(settings, ours), "auxiliary": vae.init(auxiliary, theirs)}
        return Variables(*({k: v[i] for k, v in parts.items()} for i in range(2)))

    def lavae(params, batch_stats):
        return Variables(params["lavae"], batch_stats["lavae"])

    def loss(params, batch_stats, x, keys, step, *, warming_up, axis_name=None):
        mode = {"train": True, "axis_name": axis_name}
        places = math.ceil(config.budget.places * len(x))
        budget = objective.Budget(config.budget.slots, places)
        auxiliary_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        out, new = objective.elbo(
            settings,
            lavae(params, batch_stats),
            x,
            keys,
            budget,
            temperature=temperature(step),
            force_one=force_one(step),
            **mode,
        )
        batch_stats = {**batch_stats, "lavae": new.batch_stats}
        total = -out.terms.elbo.mean()
        metrics = {
            "neg_elbo": total,
            "neg_log_likelihood": -out.terms.log_likelihood.mean(),
            "kl_count": out.terms.kl_count.mean(),
            "kl_location": out.terms.kl_location.mean(),
            "kl_appearance": out.terms.kl_appearance.mean(),
            "inferred_count": out.inferred_count.mean(),
            "overflow": out.posterior.overflow / len(x),
        }
        if warming_up:
            theirs = Variables(params["auxiliary"], batch_stats["auxiliary"])
            terms, new = vae.elbo(auxiliary, theirs, x, auxiliary_keys, **mode)
            batch_stats = {**batch_stats, "auxiliary": new.batch_stats}
            canvas = x.shape[1:3]
            target = jax.lax.stop_gradient(vae.kl_map(terms.kl, auxiliary.cell, canvas))
            logits = out.h_loc / settings.gamma_for(canvas)
            distance = jnp.square(logits - target).sum((1, 2)).mean()
            metrics["auxiliary_neg_elbo"] = -terms.elbo().mean()
            metrics["auxiliary_distance"] = distance
            total += metrics["auxiliary_neg_elbo"] + auxiliary_weight(step) * distance
        return total, (batch_stats, metrics)

    def evaluate(variables, x, count, keys):
        out, _ = objective.elbo(settings, lavae(*variables), x, keys)
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
        out, _ = objective.elbo(settings, lavae(*variables), x, keys)
        drawn = out.posterior
        sprites = drawn.objects.scatter(drawn.sprites, len(x), settings.max_objects)
        means = bernoulli.pixel_means(drawn.intensity)
        return Explanation(means, drawn.count, drawn.where.index, sprites)

    return Task(
        init,
        loss,
        evaluate,
        explain,
        learning_rates={
            "location": schedules.location_learning_rate(config.optimizer),
            "rest": optax.constant_schedule(config.optimizer.learning_rate),
        },
        group=lambda path: "location" if path.startswith("lavae.location.") else "rest",
        warmup_steps=config.warmup.steps + config.warmup.anneal_steps,
    )


# --- the baseline ------------------------------------------------------------


def _baseline(config: ConfigDict) -> Task:
    settings = BaselineConfig(**config.model)
    beta = schedules.beta(config.beta)

    def loss(params, batch_stats, x, keys, step, *, warming_up, axis_name=None):
        del warming_up
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
        loss,
        evaluate,
        explain,
        learning_rates={"rest": optax.constant_schedule(config.optimizer.learning_rate)},
        group=lambda path: "rest",
        warmup_steps=0,
    )
