"""The likelihood of grey pixels: a Gaussian of fixed width around λ, the sum of the sprites.

Levels are those of `normalisation`: 0 is background, and a typical object is at one half. The width
accounts for noise, for texture that sprites cannot represent, and for structures that are not
objects. A continuous density has no upper bound, so log p(x) of grey images can be positive.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from lavae_jax import normalisation
from lavae_jax.arrays import AnyArray


@dataclasses.dataclass(frozen=True)
class GaussianPixels:
    """N(x; λ, deviation²) of each pixel.

    Attributes:
        deviation: the standard deviation of a pixel.
    """

    deviation: float

    def log_prob(self, x: jax.Array, intensity: jax.Array) -> jax.Array:
        """Computes log p(x | λ) of each pixel.

        Args:
            x: images, [..., H, W, C].
            intensity: λ, [..., H, W, C].

        Returns:
            Log densities, [..., H, W, C].
        """
        constant = math.log(self.deviation) + 0.5 * math.log(2 * math.pi)
        return -0.5 * jnp.square((x - intensity) / self.deviation) - constant

    def pixel_means(self, intensity: jax.Array) -> jax.Array:
        """Computes E[x | λ] of each pixel.

        Args:
            intensity: λ, [..., H, W, C].

        Returns:
            λ itself.
        """
        return intensity

    def is_foreground(self, values: AnyArray) -> AnyArray:
        """Decides which pixels belong to an object.

        Args:
            values: pixels of images, or their means, [...].

        Returns:
            [...] bool.
        """
        return values > normalisation.FOREGROUND
