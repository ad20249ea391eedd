import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from lavae_jax import bernoulli

INTENSITY = jnp.array([0.0, 1e-7, 1e-3, 0.2, 0.5, 0.9, 0.999, 1.0, 1.2, 2.0, 7.0])


def test_probabilities_add_up_to_one_for_every_sum_of_sprites():
    foreground, background = bernoulli.log_prob(1.0, INTENSITY), bernoulli.log_prob(0.0, INTENSITY)
    assert np.isfinite(foreground).all()
    assert np.isfinite(background).all()
    np.testing.assert_allclose(np.exp(foreground) + np.exp(background), 1, rtol=1e-6)
    np.testing.assert_allclose(
        np.exp(foreground), bernoulli.pixel_means(INTENSITY), rtol=1e-5, atol=1e-7
    )


def test_below_one_the_sum_is_the_probability():
    inside = np.linspace(0.01, 0.99, 50)
    for x in (0.0, 1.0):
        ours = bernoulli.log_prob(x, jnp.asarray(inside))
        np.testing.assert_allclose(ours, scipy.stats.bernoulli.logpmf(x, inside), atol=2e-4)


def test_brighter_is_likelier_to_be_foreground_without_jumps():
    with jax.enable_x64(True):
        fine = jnp.linspace(0, 3, 300_001)
        means = np.asarray(bernoulli.pixel_means(fine))
        assert (np.diff(means) > 0).all()
        assert np.diff(means).max() < 1.01e-5
        slope = np.asarray(jax.vmap(jax.grad(bernoulli.pixel_means))(fine))
        assert np.abs(np.diff(slope)).max() < 0.2  # from 1 to 0 within some δ


def test_the_gradient_never_vanishes():
    slope = jax.vmap(jax.grad(bernoulli.log_prob, argnums=1), (None, 0))
    foreground, background = slope(1.0, INTENSITY), slope(0.0, INTENSITY)
    assert (foreground > 0).all()
    assert (background < 0).all()
    assert foreground[0] > 1e3  # a foreground pixel that nothing explains
    np.testing.assert_allclose(background[-2:], -1 / (INTENSITY[-2:] - 1), rtol=1e-3)  # overlap


def test_rounding_noise_below_zero_has_the_value_and_slope_of_zero():
    slope = jax.grad(bernoulli.log_prob, argnums=1)
    assert slope(1.0, -1e-8) == slope(1.0, 0.0) > 1e5
    assert np.isfinite(bernoulli.log_prob(1.0, jnp.array(-1e-5)))
    np.testing.assert_allclose(bernoulli.log_prob(0.0, jnp.array(-1e-5)), -1e-6, rtol=0.1)


def test_a_black_canvas_is_nearly_free():
    assert -4096 * bernoulli.log_prob(0.0, jnp.array(0.0)) < 0.005


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_gradients_against_finite_differences(x):
    with jax.enable_x64(True):
        points = jnp.array([0.01, 0.3, 0.8, 1.01, 1.5])
        check_grads(lambda i: bernoulli.log_prob(x, i), (points,), order=1, eps=1e-7)
        check_grads(lambda i: bernoulli.log_prob_from_logits(x, i), (points,), order=1)
