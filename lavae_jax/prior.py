"""p(z_app), the prior of appearances: N(0, I), the paper's, or a mixture that is learnt.

A prior is a `Mixture`, or None for N(0, I). The cloud of the encodings of a thousand digits is
a thousand tight clusters, which a mixture of as many Gaussians describes and N(0, I) does not.

    p(z) = (1 - ε) Σ_k w_k N(z; μ_k, v_k) + ε N(z; 0, I)

The last term is not learnt. Without it, an object without a component has next to no
density, and one such object decides the mean over all scenes; with it, an object costs at most
-log ε = 4.6 nats more than under N(0, I).
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lavae_jax import gaussian
from lavae_jax.gaussian import Gaussian

LEAST_VARIANCE = 0.03  # of a component, when it starts
STANDARD_SHARE = 0.01  # ε
ENTRIES = 2**22  # of a matrix [P, K], at once


class Mixture(NamedTuple):
    """K Gaussians, by their parameters as they are trained.

    Weights are a softmax and log variances are squashed as those of networks are, so that
    neither can blow up. A component far from all objects has no gradient but that of its
    weight, which falls until it no longer counts; it is never moved elsewhere.
    """

    logits: jax.Array  # [K]: of the weights
    # [2L, K]: means and log variances (`gaussian.from_features`). With K last, the density is
    # faster on a CPU, since all that is summed lies in order.
    features: jax.Array

    @property
    def components(self) -> Gaussian:
        """[L, K]."""
        return gaussian.from_features(self.features, axis=0)

    @property
    def perplexity(self) -> jax.Array:
        """The number of components that are in use: K if all weights are the same."""
        log_weights = jax.nn.log_softmax(self.logits)
        return jnp.exp(-jnp.sum(jnp.exp(log_weights) * log_weights))


def standard(key: chex.PRNGKey, components: int, latent_size: int) -> Mixture:
    """Components that are all N(0, I), and so is their mixture; the key is Flax's."""
    del key
    return Mixture(jnp.zeros(components), jnp.zeros((2 * latent_size, components)))


def at_encodings(encodings: np.ndarray) -> Mixture:
    """A component at each of the encodings [K, L], which are means of q(z_app) under N(0, I).

    There, the variance of the encodings and the mean variance of q add up to about 1: what is
    left of 1 is how far q reaches around an encoding, and so must its component.
    """
    variance = np.maximum(1 - encodings.var(0, dtype=np.float64), LEAST_VARIANCE)
    log_variance = np.broadcast_to(np.log(variance), encodings.shape)
    features = gaussian.to_features(Gaussian(encodings, log_variance))
    return Mixture(np.zeros(len(encodings), np.float32), features.T.astype(np.float32))


def log_density(mixture: Mixture, z: jax.Array, near: jax.Array | None = None) -> jax.Array:
    """log p(z) of appearances [P, L].

    near [P, N]: the components that are evaluated for each, if not all. The others are left out, so
    that this is a lower bound on log p(z), in a time that does not grow with K.
    """
    learnt = _log_learnt(mixture, z) if near is None else _log_learnt_near(mixture, z, near)
    standard = gaussian.log_density(Gaussian(0.0, 0.0), z).sum(-1)
    return jnp.logaddexp(math.log1p(-STANDARD_SHARE) + learnt, math.log(STANDARD_SHARE) + standard)


def _log_learnt_near(mixture, z, near):
    components = gaussian.from_features(mixture.features[:, near], axis=0)  # [L, P, N]
    terms = gaussian.log_density(components, z.T[..., None]).sum(0)
    terms += mixture.logits[near] - jax.nn.logsumexp(mixture.logits)
    return jax.nn.logsumexp(terms, axis=-1)


def _log_learnt(mixture, z):
    """A component's log w N(z; μ, v) is linear in (z², z, 1), so that those of P appearances and
    K components are a matrix product. P is cut into parts where [P, K] would be too large."""
    mean, log_variance = mixture.components
    precision = jnp.exp(-log_variance)
    at_zero = gaussian.log_density(mixture.components, 0).sum(0, keepdims=True)
    at_zero += jax.nn.log_softmax(mixture.logits)
    factors = jnp.concatenate([-precision / 2, mean * precision, at_zero])  # [2L + 1, K]

    def log_p(z):
        powers = jnp.concatenate([jnp.square(z), z, jnp.ones_like(z[..., :1])], axis=-1)
        # Large numbers cancel here, of which bfloat16 would leave nothing.
        terms = jnp.matmul(powers, factors, precision=lax.Precision.HIGHEST)
        return jax.nn.logsumexp(terms, axis=-1)

    at_once = max(1, ENTRIES // len(mixture.logits))
    return log_p(z) if len(z) <= at_once else lax.map(log_p, z, batch_size=at_once)


class Divergence(NamedTuple):
    """Of q from the prior, [P] each."""

    kl: jax.Array  # KL(q || p); its estimate from the sample, if it has no closed form
    log_ratio: jax.Array  # log q(z) - log p(z) at the sample


def divergence(
    prior: Mixture | None, q: Gaussian, noise: jax.Array, near: jax.Array | None = None
) -> Divergence:
    """Of q [P, L] and its sample z = μ + σ ε; near: as for `log_density`."""
    if prior is None:
        log_ratio = gaussian.log_ratio_to_standard(q, noise).sum(-1)
        return Divergence(gaussian.kl_to_standard(q).sum(-1), log_ratio)
    z = gaussian.sample(q, noise)
    log_ratio = gaussian.log_density(q, z).sum(-1) - log_density(prior, z, near)
    return Divergence(log_ratio, log_ratio)


def sample(prior: Mixture | None, noise: jax.Array, choice: jax.Array) -> jax.Array:
    """Appearances [..., L] out of standard normal noise [..., L].

    choice: uniform in 0..1, [...]; it chooses the component, and N(0, I) from 1 - ε on.
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
    """The mean and the standard deviation of each coordinate, [L] each."""
    if prior is None:
        return jnp.zeros(latent_size), jnp.ones(latent_size)
    weights = (1 - STANDARD_SHARE) * jax.nn.softmax(prior.logits)
    mean, log_variance = prior.components
    centre = mean @ weights
    variance = (jnp.exp(log_variance) + jnp.square(mean - centre[:, None])) @ weights
    variance += STANDARD_SHARE * (1 + jnp.square(centre))
    return centre, jnp.sqrt(variance)
