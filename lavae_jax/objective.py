"""The evidence lower bound (Eq. 6, App. A) and the importance-weighted bound.

Functions of a bound LAVAE. Each image has a random key of its own in `keys` [B], so results do not
depend on how images are distributed over batches and devices.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from lavae_jax import generative, inference, likelihoods, prior
from lavae_jax.inference import Detection, LocationPosterior, Posterior
from lavae_jax.model import LAVAE
from lavae_jax.packing import Budget


class Terms(NamedTuple):
    """The terms of the ELBO for each image, [B] each.

    Attributes:
        log_likelihood: log p(x | z).
        kl_count: KL(q(n | x) || p(n)).
        kl_location: KL of z_loc.
        kl_appearance: KL of z_app.
    """

    log_likelihood: jax.Array
    kl_count: jax.Array
    kl_location: jax.Array
    kl_appearance: jax.Array

    @property
    def elbo(self) -> jax.Array:
        """The ELBO of each image, [B]."""
        return self.log_likelihood - self.kl_count - self.kl_location - self.kl_appearance


class Elbo(NamedTuple):
    """A single-sample estimate of the ELBO, and what it was computed from.

    Attributes:
        terms: the terms of the ELBO.
        detection: what the location network finds; None if locations were given.
        count: n̂, [B], even where a different n was forced.
        posterior: the sample of z_loc and z_app.
        intensity: λ, [B, H, W, C].
    """

    terms: Terms
    detection: Detection | None
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count
    posterior: Posterior
    intensity: jax.Array


def elbo(
    lavae: LAVAE,
    x: jax.Array,
    keys: chex.PRNGKey,
    budget: Budget | None = None,
    *,
    temperature: jax.Array | None = None,
    force_one: jax.Array | float = 0.0,
    located: LocationPosterior | None = None,
    standard_prior: bool = False,
) -> Elbo:
    """Estimates the ELBO of each image from a single sample.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        budget: how many objects are computed; None for M in every image.
        temperature: τ of the Gumbel-softmax, a scalar; None for exact locations.
        force_one: the probability with which an image's n is forced to 1 (App. B, warm-up). p(n) is
            trained on n̂ regardless: n has no gradient, so nothing else changes.
        located: q(n | x) and q(z_loc | n, x), if known; the location network is then not run.
        standard_prior: whether p(z_app) is N(0, I) regardless of the model's prior.

    Returns:
        The estimate.
    """
    budget = budget or Budget.for_everything(lavae.settings.max_objects, len(x))
    force_keys, sample_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    detection = None
    if located is None:
        detection = inference.detect(lavae.settings, inference.location_logits(lavae, x))
        located = inference.location_posterior(lavae.settings, detection)
    forced = jax.vmap(lambda key: jax.random.bernoulli(key, force_one))(force_keys)
    count = jnp.where(forced, 1, located.count)
    posterior = inference.sample_posterior(
        lavae, x, located, count, sample_keys, budget, temperature
    )
    intensity = _intensity(lavae, posterior, x.shape[1:3])
    p_app = None if standard_prior else lavae.prior
    parts, _ = _terms(lavae, p_app, x, posterior, intensity, located.count)
    return Elbo(parts, detection, located.count, posterior, intensity)


def _intensity(lavae, posterior, canvas):
    sprites = generative.decode(lavae, posterior.z_app, posterior.objects)
    return generative.intensity(
        sprites, posterior.where, posterior.objects, canvas, lavae.settings.composition
    )


def _terms(lavae, p_app, x, posterior, intensity, inferred_count) -> tuple[Terms, jax.Array]:
    """The parts of the ELBO (App. A), and log p(x, z) - log q(z | x) of the sample.

    q(n | x) is a point, so its KL is -log p(n̂).
    """
    objects = posterior.objects
    kl, log_ratio = prior.divergence(p_app, posterior.appearance, posterior.noise, posterior.near)
    parts = Terms(
        generative.log_likelihood(x, intensity, likelihoods.of(lavae.settings)),
        -generative.log_prior_count(lavae, inferred_count),
        kl_location(posterior, x.shape[1] * x.shape[2]),
        objects.sum_by_image(kl, len(x)),
    )
    sampled = parts._replace(kl_appearance=objects.sum_by_image(log_ratio, len(x)))
    return parts, sampled.elbo


def kl_location(posterior: Posterior, num_pixels: int) -> jax.Array:
    """Computes log q(z_loc | n, x) - log p(z_loc | n), a Monte Carlo estimate of the KL.

    Args:
        posterior: a sample for each image.
        num_pixels: D.

    Returns:
        The estimates, [B].
    """
    log_q = posterior.where.log_q  # [B, S]
    num_slots = log_q.shape[1]
    used = jnp.arange(num_slots) < posterior.count[:, None]
    log_p = generative.log_prior_locations(num_pixels, posterior.count, num_slots)
    return jnp.where(used, log_q, 0).sum(1) - log_p


# --- the importance-weighted bound -------------------------------------------


class Bound(NamedTuple):
    """The importance-weighted bound on log p(x).

    Attributes:
        log_p: the bound, [B].
        terms: the terms of the ELBO, means over samples, [B] each.
    """

    log_p: jax.Array
    terms: NamedTuple

    @classmethod
    def of_samples(cls, log_weights: jax.Array, terms: NamedTuple) -> "Bound":
        """Computes the bound from K samples.

        Args:
            log_weights: log p(x, z) - log q(z | x), [K, B].
            terms: the terms of the ELBO, [K, B] each.

        Returns:
            The bound.
        """
        return cls(jax.nn.logmeanexp(log_weights, axis=0), jax.tree.map(lambda a: a.mean(0), terms))


def bound(
    lavae: LAVAE,
    x: jax.Array,
    keys: chex.PRNGKey,
    num_samples: int,
    num_slots: int | None = None,
    located: LocationPosterior | None = None,
) -> Bound:
    """Computes the importance-weighted bound on log p(x).

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        num_samples: K, importance samples for each image.
        num_slots: S, which must be at least the largest inferred count; None for M.
        located: q(n | x) and q(z_loc | n, x), if known; the location network is then not run.

    Returns:
        The bound.
    """
    return Bound.of_samples(*log_weights(lavae, x, keys, num_samples, num_slots, located))


def log_weights(
    lavae: LAVAE,
    x: jax.Array,
    keys: chex.PRNGKey,
    num_samples: int,
    num_slots: int | None = None,
    located: LocationPosterior | None = None,
) -> tuple[jax.Array, Terms]:
    """Computes importance weights of exact samples z ~ q(z | x).

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        num_samples: K, samples for each image.
        num_slots: S, which must be at least the largest inferred count; None for M.
        located: q(n | x) and q(z_loc | n, x), if known; the location network is then not run.

    Returns:
        log p(x, z) - log q(z | x), [K, B], and the terms of the ELBO, [K, B] each.
    """

    def repeat(a):
        return jnp.tile(a, (num_samples, *[1] * (a.ndim - 1)))

    # What belongs to the image is computed once, then repeated.
    located = jax.tree.map(repeat, located or inference.infer_locations(lavae, x))
    count = located.count
    budget = Budget.for_everything(num_slots or lavae.settings.max_objects, len(count))
    keys = jax.vmap(lambda key: jax.random.split(key, num_samples), out_axes=1)(keys).ravel()
    posterior = inference.sample_posterior(lavae, x, located, count, keys, budget)
    intensity = _intensity(lavae, posterior, x.shape[1:3])
    parts, log_w = _terms(lavae, lavae.prior, repeat(x), posterior, intensity, count)
    return jax.tree.map(lambda a: a.reshape(num_samples, -1), (log_w, parts))
