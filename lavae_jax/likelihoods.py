"""The likelihood of pixels, p(x | λ), which `settings.likelihood` selects by name.

To add a likelihood, implement the functions of `Likelihood` in a module of its own, return it from
`of`, and add its name to `LavaeSettings.likelihood`.
"""

from typing import Protocol

import jax

from lavae_jax import bernoulli
from lavae_jax.arrays import AnyArray
from lavae_jax.gaussian_pixels import GaussianPixels
from lavae_jax.settings import LavaeSettings


class Likelihood(Protocol):
    """Functions of the intensity λ [..., H, W, C], the sum of the sprites."""

    def log_prob(self, x: jax.Array, intensity: jax.Array) -> jax.Array:
        """Computes log p(x | λ) of each pixel.

        Args:
            x: images, [..., H, W, C].
            intensity: λ, [..., H, W, C].

        Returns:
            Log probabilities or densities, [..., H, W, C].
        """

    def pixel_means(self, intensity: jax.Array) -> jax.Array:
        """Computes E[x | λ] of each pixel.

        Args:
            intensity: λ, [..., H, W, C].

        Returns:
            Means, [..., H, W, C].
        """

    def is_foreground(self, values: AnyArray) -> AnyArray:
        """Decides which pixels belong to an object.

        Args:
            values: pixels of images, or their means, [...].

        Returns:
            [...] bool.
        """


def of(settings: LavaeSettings) -> Likelihood:
    """Returns the likelihood of a model.

    Args:
        settings: the model's settings.

    Returns:
        The likelihood.
    """
    if settings.likelihood == "gaussian":
        return GaussianPixels(settings.pixel_deviation)
    return bernoulli
