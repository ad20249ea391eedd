"""The evidence lower bound (Eq. 6, App. A) and the importance-weighted bound.

Randomness belongs to the image: `keys` [B] holds one key for each, so results do not
depend on how images are spread over batches and devices.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from lavae_jax import gaussian, generative, inference, locations, packing
from lavae_jax.gaussian import Gaussian
from lavae_jax.locations import Locations
from lavae_jax.model import ModelConfig, Variables
from lavae_jax.packing import Objects


class Budget(NamedTuple):
    """How many objects are computed: S slots an image, P places in a batch."""

    num_slots: int
    capacity: int

    @classmethod
    def for_everything(cls, config: ModelConfig, num_images: int) -> "Budget":
        """Room for M objects in every image: nothing can be cut."""
        return cls(config.max_objects, config.max_objects * num_images)


class Posterior(NamedTuple):
    """One sample of q(z_loc, z_app | n, x) for each image."""

    count: jax.Array  # [B]: the number of objects used
    where: Locations
    objects: Objects
    appearance: Gaussian  # [P, L]
    noise: jax.Array  # [P, L]: ε
    sprites: jax.Array  # [P, h, w, C]
    intensity: jax.Array  # [B, H, W, C]: λ
    overflow: jax.Array  # []: objects that were cut because the budget is too small

    @property
    def z_app(self) -> jax.Array:
        return gaussian.sample(self.appearance, self.noise)


class Terms(NamedTuple):
    """The parts of the ELBO for each image, [B] each."""

    log_likelihood: jax.Array
    kl_count: jax.Array
    kl_location: jax.Array
    kl_appearance: jax.Array

    @property
    def elbo(self) -> jax.Array:
        return self.log_likelihood - self.kl_count - self.kl_location - self.kl_appearance


def sample_posterior(
    config: ModelConfig,
    variables: Variables,
    x: jax.Array,
    logits: jax.Array,
    count: jax.Array,
    keys: chex.PRNGKey,
    budget: Budget,
    *,
    temperature: jax.Array | None = None,
    train: bool = False,
    axis_name: str | None = None,
) -> tuple[Posterior, Variables]:
    """Locations, appearances and the reconstruction of images x [B, H, W, C].

    logits: those of q(z_loc), [B, H, W] (`inference.sampling_logits`). With a temperature
    the locations are relaxed, so that a gradient reaches them. Without, there may be
    [K B, H, W] of them, with as many counts and keys: K samples of each image.
    """
    chex.assert_rank(x, 4)
    num_images, canvas = len(logits), x.shape[1:3]
    mode = {"train": train, "axis_name": axis_name}
    location_keys, appearance_keys = jax.vmap(jax.random.split, out_axes=1)(keys)

    count, overflow = packing.fit(count, *budget)
    objects = packing.pack(count, budget.capacity)
    logits = logits.reshape(num_images, -1)
    where = locations.sample(location_keys, logits, budget.num_slots, temperature)
    q_app, variables = inference.appearance(config, variables, x, where, objects, **mode)
    # Drawn for every slot, so that a sample does not depend on how objects are packed.
    shape = (budget.num_slots, config.latent_size)
    draw = jax.vmap(lambda key: jax.random.normal(key, shape, q_app.mean.dtype))
    noise = objects.gather(draw(appearance_keys))
    z_app = gaussian.sample(q_app, noise)
    sprites, variables = generative.decode(config, variables, z_app, objects, **mode)
    intensity = generative.intensity(sprites, where, objects, num_images, canvas)
    posterior = Posterior(count, where, objects, q_app, noise, sprites, intensity, overflow)
    return posterior, variables


def kl_location(posterior: Posterior, num_pixels: int) -> jax.Array:
    """log q(z_loc | n, x) - log p(z_loc | n) [B], a Monte Carlo estimate of the KL."""
    log_q = posterior.where.log_q  # [B, S]
    num_slots = log_q.shape[1]
    used = jnp.arange(num_slots) < posterior.count[:, None]
    log_p = generative.log_prior_locations(num_pixels, posterior.count, num_slots)
    return jnp.where(used, log_q, 0).sum(1) - log_p


def terms(
    variables: Variables, x: jax.Array, posterior: Posterior, inferred_count: jax.Array
) -> Terms:
    """The ELBO's parts (App. A). q(n | x) is a point, so its KL is -log p(n̂)."""
    num_images, num_pixels = len(x), x.shape[1] * x.shape[2]
    kl_app = gaussian.kl_to_standard(posterior.appearance).sum(-1)
    return Terms(
        generative.log_likelihood(x, posterior.intensity),
        -generative.log_prior_count(variables, inferred_count),
        kl_location(posterior, num_pixels),
        posterior.objects.sum_by_image(kl_app, num_images),
    )


class Elbo(NamedTuple):
    terms: Terms
    posterior: Posterior
    h_loc: jax.Array  # [B, H, W]
    inferred_count: jax.Array  # [B]: n̂, also where another n was forced


def elbo(
    config: ModelConfig,
    variables: Variables,
    x: jax.Array,
    keys: chex.PRNGKey,
    budget: Budget | None = None,
    *,
    temperature: jax.Array | None = None,
    force_one: jax.Array | float = 0.0,
    freeze_location: bool = False,
    train: bool = False,
    axis_name: str | None = None,
) -> tuple[Elbo, Variables]:
    """A single-sample estimate of the ELBO of each image.

    With probability `force_one`, an image's n is forced to 1 (App. B, warm-up). p(n)
    is trained on n̂ all the same: n has no gradient, so nothing else changes. With
    `freeze_location`, the location network is used as in evaluation, without gradient.
    """
    budget = budget or Budget.for_everything(config, len(x))
    force_keys, sample_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    mode = {"train": train, "axis_name": axis_name}
    h_loc, variables = inference.location_logits(
        config, variables, x, train=train and not freeze_location, axis_name=axis_name
    )
    if freeze_location:
        h_loc = jax.lax.stop_gradient(h_loc)
    inferred_count = inference.infer_count(config, h_loc)
    forced = jax.vmap(lambda key: jax.random.bernoulli(key, force_one))(force_keys)
    count = jnp.where(forced, 1, inferred_count)
    logits = inference.sampling_logits(config, h_loc)
    posterior, variables = sample_posterior(
        config, variables, x, logits, count, sample_keys, budget, temperature=temperature, **mode
    )
    parts = terms(variables, x, posterior, inferred_count)
    return Elbo(parts, posterior, h_loc, inferred_count), variables


# --- the importance-weighted bound -------------------------------------------


def log_weights(
    config: ModelConfig,
    variables: Variables,
    x: jax.Array,
    h_loc: jax.Array,
    keys: chex.PRNGKey,
    num_samples: int,
    num_slots: int | None = None,
) -> tuple[jax.Array, Terms]:
    """log p(x, z) - log q(z | x) of hard samples z ~ q(z | x), and the ELBO's parts of each.

    All are [K, B]. `num_slots` (M if not given) must be no less than the largest count.
    """

    def repeat(a):
        return jnp.tile(a, (num_samples, *[1] * (a.ndim - 1)))

    # What belongs to the image is computed once, then repeated.
    count = repeat(inference.infer_count(config, h_loc))
    logits = repeat(inference.sampling_logits(config, h_loc))
    num_slots = num_slots or config.max_objects
    budget = Budget(num_slots, num_slots * len(count))
    keys = jax.vmap(lambda key: jax.random.split(key, num_samples), out_axes=1)(keys).ravel()
    posterior, _ = sample_posterior(config, variables, x, logits, count, keys, budget)
    parts = terms(variables, repeat(x), posterior, count)
    log_ratio = gaussian.log_ratio_to_standard(posterior.appearance, posterior.noise).sum(-1)
    log_ratio = posterior.objects.sum_by_image(log_ratio, len(count))
    log_w = parts._replace(kl_appearance=log_ratio).elbo
    return jax.tree.map(lambda a: a.reshape(num_samples, -1), (log_w, parts))


def log_mean_exp(log_weights: jax.Array) -> jax.Array:
    """The importance-weighted bound on log p(x) from log weights [K, B]."""
    return jax.nn.logsumexp(log_weights, axis=0) - jnp.log(log_weights.shape[0])
