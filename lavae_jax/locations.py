"""Locations: categorical samples without replacement over the D pixels (Section 2).

q(z_loc^(i) | z_loc^(<i), x) = Cat(b^(i)),  b^(i) ∝ softmax(h_loc) · (1 - Σ_{j<i} z_loc^(j)),
p(z_loc^(i) | z_loc^(<i)) = uniform over the D - i + 1 pixels that are left.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

TAKEN = -1e9  # the logit of a pixel that was drawn before: "a low value" (App. B)


class Locations(NamedTuple):
    """S locations for each of B images."""

    index: jax.Array  # [B, S] int32: the pixel (for a relaxed sample, its largest weight)
    weights: jax.Array | None  # [B, S, D]: the relaxed one-hot vector; None if hard
    log_q: jax.Array  # [B, S]: log q of each location given the earlier ones


def sample(
    keys: chex.PRNGKey, logits: jax.Array, num_slots: int, temperature: jax.Array | None = None
) -> Locations:
    """Draws `num_slots` different pixels one after the other from logits [B, D].

    Each image has a key of its own, keys [B]. With a temperature, each draw is
    relaxed to the Gumbel-softmax; without one, it is exact.
    """
    gumbel = jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[1:], logits.dtype))(keys)
    return sample_with_noise(logits, gumbel, num_slots, temperature)


def sample_with_noise(
    logits: jax.Array, gumbel: jax.Array, num_slots: int, temperature: jax.Array | None = None
) -> Locations:
    """`sample` as a deterministic function of Gumbel noise [B, D].

    All draws of an image share their noise: the pixels with the largest perturbed
    logits, in order, are distributed exactly as draws without replacement
    (Plackett-Luce), at the price of one noise vector instead of S.
    """
    chex.assert_rank([logits, gumbel], 2)
    chex.assert_equal_shape([logits, gumbel])
    num_pixels = logits.shape[-1]
    if num_slots > num_pixels:
        raise ValueError(f"{num_slots} locations cannot be drawn from {num_pixels} pixels")
    pixel = jnp.arange(num_pixels)

    def draw(masked: jax.Array, _):
        log_b = jax.nn.log_softmax(masked)
        perturbed = masked + gumbel
        index = jnp.argmax(perturbed, axis=-1)
        if temperature is None:
            weights = None
            log_q = jnp.take_along_axis(log_b, index[:, None], axis=-1)[:, 0]
        else:
            weights = jax.nn.softmax(perturbed / temperature)
            log_q = jnp.sum(weights * log_b, axis=-1)
        masked = jnp.where(pixel == index[:, None], TAKEN, masked)
        return masked, Locations(index, weights, log_q)

    _, drawn = lax.scan(draw, logits, length=num_slots)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), drawn)


def log_prior(num_pixels: int, num_slots: int) -> jax.Array:
    """log p [S] of each location given the earlier ones: -log(D - i + 1), i = 1..S."""
    return -jnp.log(num_pixels - jnp.arange(num_slots, dtype=float))
