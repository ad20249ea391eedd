import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from lavae_jax import placement

CANVAS = (9, 12)
IMAGE = jnp.array([0, 0, 2, 1, 2])  # five objects in three images
NUM_IMAGES = 3


def random(seed, *shape, dtype=jnp.float32):
    return jax.random.uniform(jax.random.key(seed), shape, dtype)


def place_by_hand(sprites, weights):
    """λ[y] = Σ_l w[l] sprite[y - l + centre], pixel by pixel."""
    sprites, weights = np.asarray(sprites), np.asarray(weights)
    _, h, w, channels = sprites.shape
    canvas = np.zeros((NUM_IMAGES, *CANVAS, channels))
    for p, image in enumerate(np.asarray(IMAGE)):
        for row, column in itertools.product(*map(range, CANVAS)):
            for u, v in itertools.product(range(h), range(w)):
                y, x = row + u - h // 2, column + v - w // 2
                if 0 <= y < CANVAS[0] and 0 <= x < CANVAS[1]:
                    canvas[image, y, x] += weights[p, row, column] * sprites[p, u, v]
    return canvas


@pytest.mark.parametrize("method", ["convolution", "fft"])
@pytest.mark.parametrize(("h", "w", "channels"), [(5, 5, 1), (3, 7, 2), (4, 4, 3), (1, 1, 1)])
def test_placement_is_convolution_with_the_location(method, h, w, channels):
    sprites, weights = random(0, 5, h, w, channels), random(1, 5, *CANVAS)
    placed = placement.place(sprites, weights, IMAGE, NUM_IMAGES, method)
    np.testing.assert_allclose(placed, place_by_hand(sprites, weights), rtol=1e-4, atol=1e-5)


def one_hot(index):
    return jax.nn.one_hot(index, CANVAS[0] * CANVAS[1]).reshape(-1, *CANVAS)


# Corners, an edge and the inside: sprites are cut on every side.
INDEX = jnp.array([0, 11, 9 * 12 - 1, 5 * 12, 4 * 12 + 6])


@pytest.mark.parametrize("method", ["convolution", "fft"])
@pytest.mark.parametrize("size", [5, 4])
def test_hard_and_relaxed_forms_agree_in_value_and_gradient(method, size):
    sprites, target = random(0, 5, size, size, 2), random(1, NUM_IMAGES, *CANVAS, 2)

    def relaxed(s):
        return placement.place(s, one_hot(INDEX), IMAGE, NUM_IMAGES, method)

    def hard(s):
        return placement.place_at(s, INDEX, IMAGE, NUM_IMAGES, CANVAS)

    def loss(function):
        return jax.grad(lambda s: jnp.sum((function(s) - target) ** 2))(sprites)

    np.testing.assert_allclose(relaxed(sprites), hard(sprites), atol=1e-5)
    np.testing.assert_allclose(loss(relaxed), loss(hard), atol=1e-4)


@pytest.mark.parametrize("method", ["fft", "matmul"])
@pytest.mark.parametrize("size", [5, 7, 4, 13])
def test_hard_and_relaxed_windows_agree_in_value_and_gradient(method, size):
    x, target = random(0, NUM_IMAGES, *CANVAS, 2), random(1, 5, size, size, 2)

    def relaxed(x):
        return placement.windows(x, one_hot(INDEX), IMAGE, size, method)

    def hard(x):
        return placement.windows_at(x, INDEX, IMAGE, size)

    def loss(function):
        return jax.grad(lambda x: jnp.sum((function(x) - target) ** 2))(x)

    np.testing.assert_allclose(relaxed(x), hard(x), atol=1e-5)
    np.testing.assert_allclose(loss(relaxed), loss(hard), atol=1e-4)


def test_a_window_shows_the_image_around_its_location():
    x = random(0, NUM_IMAGES, *CANVAS, 1)
    seen = np.asarray(placement.windows_at(x, INDEX, IMAGE, 5))
    np.testing.assert_array_equal(seen[4], x[2, 2:7, 4:9])
    np.testing.assert_array_equal(seen[0, 2:, 2:], x[0, :3, :3])
    assert (seen[0, :2] == 0).all()
    assert (seen[0, :, :2] == 0).all()


# Methods that are used together, and the default.
PAIRS = [("fft", "fft"), ("convolution", "matmul"), (None, None)]


@pytest.mark.parametrize(("place", "windows"), PAIRS)
def test_windows_are_the_adjoint_of_placement(place, windows):
    sprites, weights, x = random(0, 5, 5, 5, 2), random(1, 5, *CANVAS), random(2, 3, *CANVAS, 2)
    placed = placement.place(sprites, weights, IMAGE, NUM_IMAGES, place)
    seen = placement.windows(x, weights, IMAGE, 5, windows)
    np.testing.assert_allclose(jnp.vdot(placed, x), jnp.vdot(sprites, seen), rtol=1e-4)


@pytest.mark.parametrize(("place", "windows"), PAIRS)
def test_gradients_against_finite_differences(place, windows):
    with jax.enable_x64(True):
        sprites, weights = (
            random(0, 5, 3, 3, 2, dtype=jnp.float64),
            random(1, 5, *CANVAS, dtype=jnp.float64),
        )
        x = random(2, 3, *CANVAS, 2, dtype=jnp.float64)
        check_grads(
            jax.jit(lambda s, w: placement.place(s, w, IMAGE, NUM_IMAGES, place)),
            (sprites, weights),
            order=1,
            modes=["rev"],
        )
        check_grads(
            jax.jit(lambda x, w: placement.windows(x, w, IMAGE, 5, windows)),
            (x, weights),
            order=1,
            modes=["rev"],
        )


@pytest.mark.parametrize("function", ["place", "windows"])
@pytest.mark.parametrize("differentiate", [False, True])
def test_the_implementation_depends_on_the_target_platform(function, differentiate):
    """This machine traces; what it lowers has the Fourier transforms for CPUs alone."""
    sprites, weights, x = random(0, 5, 5, 5, 2), random(1, 5, *CANVAS), random(2, 3, *CANVAS, 2)

    def total(weights):
        if function == "place":
            return jnp.sum(placement.place(sprites, weights, IMAGE, NUM_IMAGES) ** 2)
        return jnp.sum(placement.windows(x, weights, IMAGE, 5) ** 2)

    traced = jax.jit(jax.grad(total) if differentiate else total).trace(weights)
    for platform in ("cpu", "tpu", "cuda"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.fft" in program) == (platform == "cpu")
        on_accelerator = "convolution" if function == "place" else "dot_general"
        assert (f"stablehlo.{on_accelerator}" in program) == (platform != "cpu")
