"""p(z_app), the prior of appearances: N(0, I), as in the paper, or a learned mixture.

A prior is a `Mixture`, or None for N(0, I). The encodings of a thousand digits form a thousand
tight clusters. A mixture of as many Gaussians fits them, but N(0, I) does not.

    p(z) = (1 - ε) Σ_k w_k N(z; μ_k, v_k) + ε N(z; 0, I)

The last term is not learned. Without it, an object that no component covers has a density of almost
0, and a single such object would dominate the mean over all scenes. With it, an object costs at
most -log ε = 4.6 nats more than under N(0, I).
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lavae_jax import gaussian
from lavae_jax.gaussian import Gaussian

LEAST_VARIANCE = 0.03  # of a component at initialisation
STANDARD_SHARE = 0.01  # ε
ENTRIES = 2**22  # the largest number of entries of a matrix [P, K] that are computed at once


class Mixture(NamedTuple):
    """A mixture of K Gaussians, stored as its trainable parameters.

    Weights are a softmax, and log variances are squashed as those of networks are, so that neither
    can diverge. A component far from all objects has no gradient except that of its weight, which
    decreases until the component is no longer used; the component is never moved elsewhere.

    Attributes:
        logits: the logits of the weights, [K].
        features: means and raw log variances (see `gaussian.from_features`), [2L, K]. With K last,
            the density is faster on a CPU, since the terms of each sum are contiguous.
    """

    logits: jax.Array
    features: jax.Array

    @property
    def components(self) -> Gaussian:
        """The Gaussians, [L, K]."""
        return gaussian.from_features(self.features, axis=0)

    @property
    def perplexity(self) -> jax.Array:
        """The effective number of components, a scalar: K if all weights are equal."""
        log_weights = jax.nn.log_softmax(self.logits)
        return jnp.exp(-jnp.sum(jnp.exp(log_weights) * log_weights))


def standard(key: chex.PRNGKey, components: int, latent_size: int) -> Mixture:
    """Creates a mixture whose components are all N(0, I).

    Args:
        key: unused; Flax passes it to every initialiser.
        components: K.
        latent_size: L.

    Returns:
        The mixture, which is N(0, I).
    """
    del key
    return Mixture(jnp.zeros(components), jnp.zeros((2 * latent_size, components)))


def at_encodings(encodings: np.ndarray) -> Mixture:
    """Creates a mixture with one component at each encoding.

    The variance of the encodings and the mean variance of q add up to about 1 in each coordinate
    under N(0, I). The variance of a component is therefore 1 minus that of the encodings.

    Args:
        encodings: means of q(z_app), from a model trained with p(z_app) = N(0, I), [K, L].

    Returns:
        The mixture.
    """
    variance = np.maximum(1 - encodings.var(0, dtype=np.float64), LEAST_VARIANCE)
    log_variance = np.broadcast_to(np.log(variance), encodings.shape)
    encoded: Any = (encodings, log_variance)  # arrays on the host
    features = gaussian.to_features(Gaussian(*encoded))
    initial: Any = (np.zeros(len(encodings), np.float32), features.T.astype(np.float32))
    return Mixture(*initial)


def log_density(mixture: Mixture, z: jax.Array, near: jax.Array | None = None) -> jax.Array:
    """Computes log p(z) of appearances.

    Args:
        mixture: the prior.
        z: appearances, [P, L].
        near: the components that are evaluated for each appearance, [P, N]; None for all. The
            others are left out, which gives a lower bound on log p(z) without a matrix [P, K].

    Returns:
        Log densities, [P].
    """
    learnt = _log_learnt(mixture, z) if near is None else _log_learnt_near(mixture, z, near)
    normal = Gaussian(0.0, 0.0)  # type: ignore[arg-type]  # scalars, whose type is that of z
    standard = gaussian.log_density(normal, z).sum(-1)
    return jnp.logaddexp(math.log1p(-STANDARD_SHARE) + learnt, math.log(STANDARD_SHARE) + standard)


def _log_learnt_near(mixture: Mixture, z: jax.Array, near: jax.Array) -> jax.Array:
    components = gaussian.from_features(mixture.features[:, near], axis=0)  # [L, P, N]
    terms = gaussian.log_density(components, z.T[..., None]).sum(0)
    terms += mixture.logits[near] - jax.nn.logsumexp(mixture.logits)
    return jax.nn.logsumexp(terms, axis=-1)


def _log_learnt(mixture: Mixture, z: jax.Array) -> jax.Array:
    """The log density [P] of the learned components.

    A component's log w N(z; μ, v) is linear in (z², z, 1), so its values for P appearances and K
    components are a matrix product. P is split into parts if [P, K] would be too large.
    """
    mean, log_variance = mixture.components
    precision = jnp.exp(-log_variance)
    at_zero = gaussian.log_density(mixture.components, 0).sum(0, keepdims=True)
    at_zero += jax.nn.log_softmax(mixture.logits)
    factors = jnp.concatenate([-precision / 2, mean * precision, at_zero])  # [2L + 1, K]

    def log_p(z: jax.Array) -> jax.Array:
        powers = jnp.concatenate([jnp.square(z), z, jnp.ones_like(z[..., :1])], axis=-1)
        # Large numbers cancel here, which leaves no correct digit in bfloat16.
        terms = jnp.matmul(powers, factors, precision=lax.Precision.HIGHEST)
        return jax.nn.logsumexp(terms, axis=-1)

    at_once = max(1, ENTRIES // len(mixture.logits))
    return log_p(z) if len(z) <= at_once else lax.map(log_p, z, batch_size=at_once)


class Divergence(NamedTuple):
    """The divergence of q from the prior.

    Attributes:
        kl: KL(q || p), [P]; its estimate from the sample if it has no closed form.
        log_ratio: log q(z) - log p(z) at the sample, [P].
    """

    kl: jax.Array
    log_ratio: jax.Array


def divergence(
    prior: Mixture | None, q: Gaussian, noise: jax.Array, near: jax.Array | None = None
) -> Divergence:
    """Computes the divergence of q from the prior.

    Args:
        prior: p(z_app).
        q: q(z_app | z_loc, x), [P, L].
        noise: ε of the sample z = μ + σ ε, [P, L].
        near: components that are evaluated for each entry, [P, N]; see `log_density`.

    Returns:
        The divergence.
    """
    if prior is None:
        log_ratio = gaussian.log_ratio_to_standard(q, noise).sum(-1)
        return Divergence(gaussian.kl_to_standard(q).sum(-1), log_ratio)
    z = gaussian.sample(q, noise)
    log_ratio = gaussian.log_density(q, z).sum(-1) - log_density(prior, z, near)
    return Divergence(log_ratio, log_ratio)


def sample(prior: Mixture | None, noise: jax.Array, choice: jax.Array) -> jax.Array:
    """Transforms noise into samples of the prior.

    Args:
        prior: p(z_app).
        noise: standard normal, [..., L].
        choice: uniform in [0, 1), [...]; it selects the component, or N(0, I) if at least 1 - ε.

    Returns:
        Appearances, [..., L].
    """
    if prior is None:
        return noise
    learnt = 1 - STANDARD_SHARE
    total = jnp.cumsum(jax.nn.softmax(prior.logits))
    index = jnp.searchsorted(total, choice / learnt * total[-1], side="right")
    index = jnp.minimum(index, len(total) - 1)
    z = gaussian.sample(jax.tree.map(lambda a: a.T[index], prior.components), noise)
    return jnp.where((choice < learnt)[..., None], z, noise)


def moments(prior: Mixture | None, latent_size: int) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and standard deviation of each coordinate.

    Args:
        prior: p(z_app).
        latent_size: L.

    Returns:
        Means and standard deviations, [L] each.
    """
    if prior is None:
        return jnp.zeros(latent_size), jnp.ones(latent_size)
    weights = (1 - STANDARD_SHARE) * jax.nn.softmax(prior.logits)
    mean, log_variance = prior.components
    centre = mean @ weights
    variance = (jnp.exp(log_variance) + jnp.square(mean - centre[:, None])) @ weights
    variance += STANDARD_SHARE * (1 + jnp.square(centre))
    return centre, jnp.sqrt(variance)
