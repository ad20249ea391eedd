"""Which products a TPU may round to bfloat16, and which it may not (docs/platforms.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bfloat16 import on_tpu

import datasets
import lavae_jax
from lavae_jax import bernoulli, generative, glimpse, inference, model, packing, placement, warmup

FINE = 1 + 2.0**-10  # bfloat16 makes it 1


def test_products_are_rounded_as_a_tpu_rounds_them():
    a, b = jnp.full((2, 3), FINE), jnp.ones((3, 2))
    np.testing.assert_array_equal(on_tpu(jnp.matmul)(a, b), 3.0)
    exact = on_tpu(lambda a, b: jnp.matmul(a, b, precision="highest"))(a, b)
    np.testing.assert_array_equal(exact, 3 * FINE)
    np.testing.assert_array_equal(on_tpu(jax.jit(lambda a: a + 1))(a), FINE + 1)


# --- what may not be rounded: the options in the code say so --------------------


def test_sprites_are_placed_with_all_their_digits():
    """In bfloat16, 0.999 is 1: a background pixel under it would cost 9.2 nats instead of 6.9."""
    sprites = jnp.full((1, 3, 3, 1), 0.999)
    weights = jax.nn.one_hot(jnp.array([5 * 9 + 5]), 81).reshape(1, 9, 9)

    def log_p_of_dark(sprites, weights):
        intensity = placement.place(sprites, weights, jnp.array([0]), 1)
        return bernoulli.sum_pixels(bernoulli.log_prob(0.0, intensity))

    exact = 9 * np.log1p(-0.999)
    np.testing.assert_allclose(on_tpu(log_p_of_dark)(sprites, weights), exact, rtol=1e-3)
    slope = on_tpu(jax.grad(lambda s, w: log_p_of_dark(s, w).sum()))(sprites, weights)
    np.testing.assert_allclose(slope, -1 / (1 - 0.999), rtol=2e-3)


def test_pixels_are_summed_with_all_their_digits():
    log_p = jnp.full((2, 8, 8, 1), FINE)
    np.testing.assert_allclose(on_tpu(bernoulli.sum_pixels)(log_p), 64 * FINE, rtol=1e-6)


def test_centres_of_mass_are_exact():
    """Sums of coordinates need more than the 8 bits of a bfloat16."""
    foreground = np.zeros((100, 64, 64), np.float32)
    foreground[:, 40:61, 40:61] = np.random.default_rng(0).random((100, 21, 21)) < 0.3
    marked = jnp.zeros(foreground.shape, bool).at[:, 50, 50].set(True)
    moved = on_tpu(lambda peaks, x: warmup.centre(peaks, x, 10, 1))(marked, foreground[..., None])
    means = [np.argwhere(image).mean(0) for image in foreground]
    np.testing.assert_array_equal(np.argwhere(moved)[:, 1:], np.floor(np.add(means, 0.5)))


def test_attention_is_on_the_brightest_pixel():
    """A pixel beside it is a few thousandths less bright, which bfloat16 would not tell."""
    shapes = np.random.default_rng(0).random((8, 9, 7)) < 0.6
    x = np.zeros((8, 64, 64, 1), np.float32)
    x[:, 20:29, 30:37, 0] = shapes
    rows, columns = glimpse.fixations(x, 8, 17)
    rounded = on_tpu(lambda x: glimpse.fixations(x, 8, 17))(x)
    assert rows.max((1, 2, 3)).min() > 0.5
    np.testing.assert_allclose(rounded[0], rows, atol=1e-2)
    np.testing.assert_allclose(rounded[1], columns, atol=1e-2)


# --- what may: the networks of trained models -----------------------------------


@pytest.mark.parametrize("name", ["dsprites", "mnist1k"])
def test_trained_models_tolerate_the_rounding_of_a_tpu(name):
    trained = lavae_jax.load(name)
    settings, variables = trained.settings, trained.variables
    builder = datasets.demo_builder(trained.config.dataset.name)
    x = jnp.asarray(builder.draw(60, seed=2, counts=(0, 7)).image / 255.0, jnp.float32)

    def both(function, *args):
        function = model.bind(function, trained.module)
        return jax.jit(function)(variables, *args), on_tpu(function)(variables, *args)

    h_loc, rounded = both(inference.location_logits, x)
    detection = inference.detect(settings, h_loc)
    np.testing.assert_array_equal(detection.count, inference.detect(settings, rounded).count)
    gamma, threshold = settings.gamma_for(x.shape[1:3]), settings.threshold_for(x.shape[1:3])
    near = jnp.abs(h_loc - threshold) < 2 * gamma
    error = jnp.abs(h_loc - rounded)[near].max() / gamma
    assert 0 < error < 0.2  # of a threshold of 4

    where = inference.peak_locations(settings, detection)
    objects = packing.pack(detection.count, where.index.size)
    exact, rounded = both(lambda lavae, x: inference.appearance(lavae, x, where, objects), x)
    error = (exact.mean - rounded.mean) / jnp.exp(exact.log_variance / 2)
    assert 0 < jnp.abs(error[objects.valid]).max() < 0.1  # of a standard deviation
    sprites, rounded = both(lambda lavae, z: generative.decode(lavae, z, objects), exact.mean)
    assert 0 < jnp.abs(sprites - rounded)[objects.valid].max() < 0.05
