"""Diagonal Gaussians, parameterised by networks: means and log variances."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A network's log variance is squashed into (-8, 8). Without a bound, the first steps
# of training overflow.
LOG_VARIANCE_BOUND = 8.0


class Gaussian(NamedTuple):
    """A diagonal Gaussian.

    Attributes:
        mean: μ, [...].
        log_variance: log σ², [...].
    """

    mean: jax.Array
    log_variance: jax.Array


def from_features(features: jax.Array, axis: int = -1) -> Gaussian:
    """Splits the output of a network into means and log variances.

    Args:
        features: means, then raw log variances, [..., 2L, ...].
        axis: the axis of size 2L.

    Returns:
        The Gaussian, [..., L, ...], with log variances squashed into (-8, 8).
    """
    mean, raw = jnp.split(features, 2, axis)
    return Gaussian(mean, LOG_VARIANCE_BOUND * jnp.tanh(raw / LOG_VARIANCE_BOUND))


def to_features(gaussian: Gaussian) -> np.ndarray:
    """Inverts `from_features`.

    Args:
        gaussian: [..., L], with log variances within the bound.

    Returns:
        Features, [..., 2L].
    """
    mean, log_variance = gaussian
    raw = LOG_VARIANCE_BOUND * np.arctanh(log_variance / LOG_VARIANCE_BOUND)
    return np.concatenate([mean, raw], axis=-1)


def sample(gaussian: Gaussian, noise: jax.Array) -> jax.Array:
    """Computes the sample μ + σ ε.

    Args:
        gaussian: [...].
        noise: ε, standard normal, [...].

    Returns:
        The sample, [...].
    """
    return gaussian.mean + jnp.exp(gaussian.log_variance / 2) * noise


def log_density(gaussian: Gaussian, z: jax.Array | float) -> jax.Array:
    """Computes log q(z) of each coordinate.

    Args:
        gaussian: q, [...].
        z: [...].

    Returns:
        Log densities, [...].
    """
    mean, log_variance = gaussian
    distance = jnp.square(z - mean) * jnp.exp(-log_variance)
    return -(distance + log_variance + math.log(2 * math.pi)) / 2


def kl_to_standard(gaussian: Gaussian) -> jax.Array:
    """Computes KL(q || N(0, I)) of each coordinate.

    Args:
        gaussian: q, [...].

    Returns:
        The KL, [...].
    """
    mean, log_variance = gaussian
    return (jnp.square(mean) + jnp.exp(log_variance) - 1 - log_variance) / 2


def log_ratio_to_standard(gaussian: Gaussian, noise: jax.Array) -> jax.Array:
    """Computes log q(z) - log N(z; 0, I) of each coordinate at z = μ + σ ε.

    Args:
        gaussian: q, [...].
        noise: ε, [...].

    Returns:
        Log ratios, [...].
    """
    z = sample(gaussian, noise)
    return (jnp.square(z) - jnp.square(noise) - gaussian.log_variance) / 2
