"""The likelihood of binary pixels.

λ = Σ_i f_sprite * z_loc is a sum of sprites, not yet a probability: it is exactly 0
where no sprite reaches and passes 1 where sprites meet. It is made one by

    s(λ) = λ                              for λ <= 1 - δ,
           1 - δ² / (λ - 1 + 2 δ)         above (continuous, with a continuous slope),
    p    = ε + (1 - ε) s(λ).

A pixel that no sprite explains costs -log ε instead of infinity, and the slope of
log p with respect to λ is never 0: a foreground pixel under an empty canvas pulls sprites
towards it, and a background pixel under two sprites pushes them away as 1 / (λ - 1 + 2 δ),
where clipping would leave it alone.
"""

import jax
import jax.numpy as jnp
import optax

EPSILON = 1e-6  # costs D ε = 0.004 nats on a black 64x64 canvas
DELTA = 1e-4  # costs δ/2 nats for a foreground pixel under a sprite of 1
FOREGROUND = 0.5  # pixels and pixel means above it belong to an object


def pixel_means(intensity: jax.Array) -> jax.Array:
    """p, the probability that a pixel is foreground, for sums of sprites λ >= 0."""
    return _probabilities(intensity)[0]


def is_foreground(values: jax.Array) -> jax.Array:
    """Whether pixels of an image, or their means, belong to an object."""
    return values > FOREGROUND


def log_prob(x: jax.Array, intensity: jax.Array) -> jax.Array:
    """log p(x | λ) of each pixel x, 0 or 1."""
    foreground, background = _probabilities(intensity)
    return x * jnp.log(foreground) + (1 - x) * jnp.log(background)


def sum_pixels(log_p: jax.Array) -> jax.Array:
    """[..., H, W, C] -> [...].

    A matrix product, because XLA's CPU backend fuses a plain sum with the logarithms
    before it and then takes them one by one: 135 ms instead of 6 for 600 images.
    """
    flat = log_p.reshape(*log_p.shape[:-3], -1)
    ones = jnp.ones(flat.shape[-1], flat.dtype)
    return jnp.matmul(flat, ones, precision=jax.lax.Precision.HIGHEST)


def _probabilities(intensity):
    """p and 1 - p, each with all its digits.

    λ below 0 is noise of a Fourier transform: its value is 0, its slope that of λ = 0.
    """
    saturated = intensity > 1 - DELTA
    noise = jnp.minimum(jax.lax.stop_gradient(intensity), 0)
    below = jnp.where(saturated, 0.0, intensity - noise)
    above = jnp.where(saturated, intensity, 1.0)
    tail = DELTA**2 / (above - 1 + 2 * DELTA)
    background = (1 - EPSILON) * jnp.where(saturated, tail, 1 - below)
    foreground = jnp.where(saturated, 1 - background, EPSILON + (1 - EPSILON) * below)
    return foreground, background


def log_prob_from_logits(x: jax.Array, logits: jax.Array) -> jax.Array:
    """log p(x) of each pixel where a network gives logits."""
    return -optax.sigmoid_binary_cross_entropy(logits, x)
