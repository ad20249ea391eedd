"""The likelihood of pixels, p(x | λ), which `settings.likelihood` selects by name.

A likelihood has the functions of `Likelihood`. To add one, write it in a module of its own, name it
here, and add its name to `LavaeSettings.likelihood`.
"""

from typing import Protocol

import jax

from lavae_jax import bernoulli
from lavae_jax.gaussian_pixels import GaussianPixels
from lavae_jax.settings import LavaeSettings


class Likelihood(Protocol):
    """Functions of the intensity λ [..., H, W, C], the sum of the sprites."""

    def log_prob(self, x: jax.Array, intensity: jax.Array) -> jax.Array:
        """log p(x | λ) of each pixel."""

    def pixel_means(self, intensity: jax.Array) -> jax.Array:
        """E[x | λ] of each pixel."""

    def is_foreground(self, values: jax.Array) -> jax.Array:
        """Whether pixels of an image, or their means, belong to an object."""


def of(settings: LavaeSettings) -> Likelihood:
    """The likelihood of a model."""
    if settings.likelihood == "gaussian":
        return GaussianPixels(settings.pixel_deviation)
    return bernoulli
