"""The likelihood of grey pixels: a Gaussian of one width around λ, the sum of the sprites.

Levels are those of `normalisation`: 0 is background, and the usual object is at one half. The width
stands for noise, for texture that a sprite cannot show, and for what is no object. A continuous
density has no upper limit, so log p(x) of grey images can be positive.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from lavae_jax import normalisation


@dataclasses.dataclass(frozen=True)
class GaussianPixels:
    """N(x; λ, deviation²) of each pixel."""

    deviation: float

    def log_prob(self, x: jax.Array, intensity: jax.Array) -> jax.Array:
        """log p(x | λ) of each pixel."""
        constant = math.log(self.deviation) + 0.5 * math.log(2 * math.pi)
        return -0.5 * jnp.square((x - intensity) / self.deviation) - constant

    def pixel_means(self, intensity: jax.Array) -> jax.Array:
        """E[x | λ] of each pixel."""
        return intensity

    def is_foreground(self, values: jax.Array) -> jax.Array:
        """Whether pixels of an image, or their means, belong to an object."""
        return values > normalisation.FOREGROUND
