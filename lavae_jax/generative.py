"""The generative model p(x, z_loc, z_app, n) (Section 2)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from lavae_jax import bernoulli, locations, model, placement
from lavae_jax.locations import Locations
from lavae_jax.model import ModelConfig, Variables
from lavae_jax.packing import Objects


def log_prior_count(variables: Variables, count: jax.Array) -> jax.Array:
    """log p(n) = log a_n."""
    return jax.nn.log_softmax(variables.params["count"])[count]


def log_prior_locations(num_pixels: int, count: jax.Array, num_slots: int) -> jax.Array:
    """log p(z_loc | n) [B]: the sum of -log(D - i + 1) over i = 1..n."""
    terms = locations.log_prior(num_pixels, num_slots)
    return jnp.concatenate([jnp.zeros(1, terms.dtype), jnp.cumsum(terms)])[count]


def decode(
    config: ModelConfig,
    variables: Variables,
    z_app: jax.Array,
    objects: Objects,
    *,
    train: bool,
    axis_name: str | None = None,
) -> tuple[jax.Array, Variables]:
    """f_sprite: [P, L] -> [P, h, w, C], 0 where there is no object."""
    network = config.sprite_decoder(axis_name)
    sprites, variables = model.apply(
        network, "decoder", variables, z_app, train=train, mask=objects.valid
    )
    return objects.mask(sprites), variables


def intensity(
    sprites: jax.Array, where: Locations, objects: Objects, num_images: int, canvas: tuple[int, int]
) -> jax.Array:
    """λ = Σ_i f_sprite(z_app^(i)) * z_loc^(i), [B, H, W, C]."""
    if where.weights is None:
        index = objects.gather(where.index)
        return placement.place_at(sprites, index, objects.image, num_images, canvas)
    weights = objects.gather(where.weights).reshape(-1, *canvas)
    return placement.place(sprites, weights, objects.image, num_images)


def log_likelihood(x: jax.Array, intensity: jax.Array) -> jax.Array:
    """log p(x | z_loc, z_app) [B], over D pixels and C channels."""
    return bernoulli.sum_pixels(bernoulli.log_prob(x, intensity))


class PriorSample(NamedTuple):
    """B scenes from the prior, with S = M slots each."""

    count: jax.Array  # [B]
    index: jax.Array  # [B, S]: the pixel of each object
    z_app: jax.Array  # [B, S, L]


def sample_prior(
    config: ModelConfig,
    variables: Variables,
    key: chex.PRNGKey,
    num_images: int,
    canvas: tuple[int, int],
    count_logits: jax.Array | None = None,
) -> PriorSample:
    """Samples of n, z_loc and z_app. `count_logits` [M + 1] replaces the learned p(n)."""
    count_key, location_key, appearance_key = jax.random.split(key, 3)
    logits = variables.params["count"] if count_logits is None else count_logits
    slots, pixels = config.max_objects, canvas[0] * canvas[1]
    count = jax.random.categorical(count_key, logits, shape=(num_images,))
    location_keys = jax.random.split(location_key, num_images)
    where = locations.sample(location_keys, jnp.zeros((num_images, pixels)), slots)
    z_app = jax.random.normal(appearance_key, (num_images, slots, config.latent_size))
    return PriorSample(count, where.index, z_app)
