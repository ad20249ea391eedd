"""The ELBO as a loss, and its metrics."""

import math

import chex
import jax
from ml_collections import ConfigDict

from lavae_jax import objective, vae
from lavae_jax.model import LAVAE
from lavae_jax.packing import Budget
from lavae_jax.training.phases import Metrics


def elbo_metrics(terms: objective.Terms | vae.Terms) -> Metrics:
    """Names the parts of the ELBO as metrics.

    Args:
        terms: the parts of the ELBO, [B] each.

    Returns:
        The negative ELBO, the negative log-likelihood and each KL divergence, [B] each.
    """
    log_likelihood, *kls = terms
    return {
        "neg_elbo": -terms.elbo,
        "neg_log_likelihood": -log_likelihood,
        **dict(zip(terms._fields[1:], kls, strict=True)),
    }


def means(metrics: Metrics) -> Metrics:
    """Averages metrics over the images.

    Args:
        metrics: by name, [B] each.

    Returns:
        Scalars by name.
    """
    return {name: value.mean(dtype=float) for name, value in metrics.items()}


def elbo_loss(
    config: ConfigDict, lavae: LAVAE, x: jax.Array, keys: chex.PRNGKey, **kwargs
) -> tuple[jax.Array, Metrics, objective.Elbo]:
    """Computes the negative ELBO of a batch as a loss.

    Args:
        config: the run's config, for the object budget of a step.
        lavae: a bound LAVAE.
        x: images, [B, H, W, C].
        keys: a key for each image, [B].
        **kwargs: further arguments of `objective.elbo`.

    Returns:
        The mean of -ELBO, the means of all metrics, and the output of `objective.elbo`.
    """
    budget = Budget(config.budget.slots, math.ceil(config.budget.objects_per_image * len(x)))
    out = objective.elbo(lavae, x, keys, budget, **kwargs)
    metrics = means({**elbo_metrics(out.terms), "inferred_count": out.count})
    metrics["overflow"] = out.posterior.overflow / len(x)
    return metrics["neg_elbo"], metrics, out
