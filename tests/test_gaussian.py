import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jax.test_util import check_grads

from lavae_jax import gaussian
from lavae_jax.gaussian import Gaussian

Q = Gaussian(jnp.array([0.7, -1.1]), jnp.array([-1.3, 0.4]))


def test_kl_is_the_integral_that_it_stands_for():
    for mean, log_variance, ours in zip(*Q, gaussian.kl_to_standard(Q), strict=True):
        q, p = scipy.stats.norm(mean, np.exp(log_variance / 2)), scipy.stats.norm()
        exact, _ = scipy.integrate.quad(lambda z: q.pdf(z) * (q.logpdf(z) - p.logpdf(z)), -12, 12)  # noqa: B023
        np.testing.assert_allclose(ours, exact, rtol=1e-4)


def test_log_ratio_is_that_of_the_densities():
    noise = jnp.array([0.5, -2.0])
    z = gaussian.sample(Q, noise)
    q = scipy.stats.norm(Q.mean, np.exp(Q.log_variance / 2))
    expected = q.logpdf(z) - scipy.stats.norm().logpdf(z)
    np.testing.assert_allclose(gaussian.log_ratio_to_standard(Q, noise), expected, rtol=1e-4)


def test_log_variance_is_bounded_and_nearly_untouched_in_the_middle():
    q = gaussian.from_features(jnp.array([3.0, 4.0, 1e6, 0.5]))
    np.testing.assert_array_equal(q.mean, [3.0, 4.0])
    np.testing.assert_allclose(q.log_variance, [8.0, 0.5], atol=1e-3)


def test_gradients_against_finite_differences():
    with jax.enable_x64(True):
        features = jnp.array([0.7, -1.1, -1.3, 0.4])
        noise = jnp.array([0.5, -2.0])

        @jax.jit
        def everything(features):
            q = gaussian.from_features(features)
            return (
                gaussian.kl_to_standard(q),
                gaussian.sample(q, noise),
                gaussian.log_ratio_to_standard(q, noise),
            )

        check_grads(everything, (features,), order=1)
