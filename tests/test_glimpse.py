"""The networks of the baseline's recipe `cpu`, against loops over pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_models
from small_models import initialised, module_of

from lavae_jax import glimpse, model, vae

CELL, KERNEL = 4, 7
GRID = (3, 5)
CANVAS = (CELL * GRID[0], CELL * GRID[1])


def random(seed, *shape):
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def one_hot(row, column):
    """Weights that have every cell look at one pixel of it."""
    at = np.eye(CELL, dtype=np.float32)[[row, column]]
    return np.broadcast_to(at[:, None, None, None], (2, 1, *GRID, CELL))


def pixels_of(cell_row, cell_column, row, column):
    """The pixels of the canvas around a cell's pixel, and those of the window, where both are."""
    centre = np.array([cell_row * CELL + row, cell_column * CELL + column])
    for offset in np.ndindex(KERNEL, KERNEL):
        pixel = centre + offset - KERNEL // 2
        if (pixel >= 0).all() and (pixel < CANVAS).all():
            yield tuple(pixel), offset


@pytest.mark.parametrize("location", [(0, 0), (3, 1), (2, 3)])
def test_a_window_is_centred_on_the_fixated_pixel(location):
    x = random(0, 1, *CANVAS, 2)
    seen = glimpse.windows(jnp.asarray(x), *one_hot(*location), KERNEL)
    expected = np.zeros((*GRID, KERNEL, KERNEL, 2), np.float32)
    for cell in np.ndindex(GRID):
        for pixel, offset in pixels_of(*cell, *location):
            expected[(*cell, *offset)] = x[(0, *pixel)]
    np.testing.assert_allclose(seen[0], expected, atol=1e-6)


@pytest.mark.parametrize("location", [(0, 0), (3, 1), (2, 3)])
def test_a_sprite_is_drawn_around_its_location(location):
    sprites = random(1, 1, *GRID, KERNEL, KERNEL, 2)
    drawn = glimpse.draw(jnp.asarray(sprites), *one_hot(*location))
    expected = np.zeros((*CANVAS, 2), np.float32)
    for cell in np.ndindex(GRID):
        for pixel, offset in pixels_of(*cell, *location):
            expected[pixel] += sprites[(0, *cell, *offset)]
    np.testing.assert_allclose(drawn[0], expected, atol=1e-5)


@pytest.mark.parametrize("kernel", [3, 5, 7, 9, 11])
def test_windows_are_linear_in_weights_and_drawing_is_their_adjoint(kernel):
    """Whether a sprite spans two cells, three or four."""
    rows, columns = random(2, 2, 2, *GRID, CELL)
    x, sprites = random(3, 2, *CANVAS, 3), random(4, 2, *GRID, kernel, kernel, 3)
    seen = glimpse.windows(x, rows, columns, kernel)
    mixed = sum(
        rows[..., i, None, None, None]
        * columns[..., j, None, None, None]
        * glimpse.windows(x, *(np.ones_like(rows) * np.eye(CELL)[k] for k in (i, j)), kernel)
        for i, j in np.ndindex(CELL, CELL)
    )
    np.testing.assert_allclose(seen, mixed, rtol=1e-4)
    drawn = glimpse.draw(sprites, rows, columns)
    np.testing.assert_allclose(np.vdot(drawn, x), np.vdot(sprites, seen), rtol=1e-4)


def scene(*corners, size=(64, 64)):
    """Copies of one shape, without any symmetry, with their upper left corners at `corners`."""
    shape = np.random.default_rng(5).uniform(size=(9, 7)) < 0.6
    image = np.zeros((*size, 1), np.float32)
    for row, column in corners:
        image[row : row + 9, column : column + 7, 0] = shape
    return image


def look(image):
    """The weight of each cell, and what it sees."""
    rows, columns = glimpse.fixations(jnp.asarray(image[None]), 8, 17)
    seen = glimpse.windows(jnp.asarray(image[None]), rows, columns, 17)
    return np.asarray(rows[0].sum(-1)), np.asarray(seen[0, ..., 0])


def test_a_thing_is_seen_by_one_cell_and_in_the_same_way_at_all_locations():
    seen_by, views = set(), []
    for row, column in np.ndindex(8, 8):
        weight, seen = look(scene((23 + row, 30 + column)))
        (cell,) = np.argwhere(weight > 0.5)
        assert weight[tuple(cell)] > 0.99
        others = np.delete(weight.ravel(), np.ravel_multi_index(cell, weight.shape))
        assert others.max() < 0.01
        seen_by.add(tuple(cell))
        views.append(seen[tuple(cell)])
        np.testing.assert_allclose(seen.sum((0, 1)), views[0], atol=0.02)
    assert len(seen_by) == 4  # cells that meet there
    np.testing.assert_allclose(views, np.broadcast_to(views[0], (64, 17, 17)), atol=0.02)


def test_things_half_a_window_apart_are_seen_by_a_cell_each():
    weight, _ = look(scene((4, 4), (4, 20), (40, 50)))
    assert (weight > 0.99).sum() == 3
    assert ((weight > 0.01) & (weight < 0.99)).sum() == 0


def attended_by_loops(image, kernel):
    """Where a blurred image [H, W] is brighter than anywhere nearer than half a window."""
    radius = kernel // 2
    blurred = np.zeros(image.shape)
    for at in np.argwhere(image):
        away = [np.abs(np.arange(side) - i) for side, i in zip(image.shape, at, strict=True)]
        weights = [np.where(d <= radius, (1 - (d / (radius + 1)) ** 2) ** 2, 0) for d in away]
        blurred += image[tuple(at)] * np.outer(*weights)

    def around(row, column):
        rows, columns = (slice(max(i - radius + 1, 0), i + radius) for i in (row, column))
        return blurred[rows, columns]

    return [at for at in np.ndindex(image.shape) if blurred[at] == around(*at).max() > 0]


@pytest.mark.parametrize("share", [0.03, 1.0])
def test_glimpses_are_of_pixels_that_are_the_brightest_within_half_a_window(share):
    images = np.where(random(6, 12, 24, 32) < share, random(7, 12, 24, 32), 0)
    rows, columns = glimpse.fixations(jnp.asarray(images[..., None]), CELL, 9)
    assert rows.shape == columns.shape == (12, 6, 8, CELL)
    for image, down, right in zip(images, np.asarray(rows), np.asarray(columns), strict=True):
        found = {
            (CELL * h + int(down[h, w].argmax()), CELL * w + int(right[h, w].argmax()))
            for h, w in np.argwhere(down.sum(-1))
        }
        assert found == set(attended_by_loops(image, 9))
        np.testing.assert_array_equal(down.sum(-1), right.sum(-1))
        assert down.sum() == len(found)


def test_a_thing_attracts_glimpses_whatever_its_colour():
    grey = np.where(random(6, 4, 24, 32) < 0.1, random(7, 4, 24, 32), 0)[..., None]
    colour = np.eye(3)[np.random.default_rng(0).integers(3, size=grey.shape[:3])]
    expected = glimpse.fixations(jnp.asarray(grey), CELL, 9)
    assert expected[0].sum() > 20
    for found, other in zip(
        glimpse.fixations(jnp.asarray(grey * colour), CELL, 9), expected, strict=True
    ):
        np.testing.assert_array_equal(found, other)


def attended_columns(*brightness, kernel):
    """Of an image that is one row of pixels, a cell each."""
    image = jnp.asarray(brightness, jnp.float32)[None, None, :, None]
    rows, columns = glimpse.fixations(image, 1, kernel)
    np.testing.assert_array_equal(rows, columns)
    return np.flatnonzero(rows).tolist()


def test_the_blur_falls_off_as_far_as_a_window_reaches():
    """In a window of 5 pixels, those 0, 1 and 2 away weigh (1 - (d / 3)^2)^2: 81, 64 and 25.

    A pixel of brightness b two to the right of one of brightness 1 makes the glimpse of the pixel
    between them if 64 + 64 b > 81 + 25 b, which is b > 17 / 39 = 0.436.
    """
    assert attended_columns(0, 0, 0, 1, 0, 0.42, 0, 0, 0, kernel=5) == [3]
    assert attended_columns(0, 0, 0, 1, 0, 0.45, 0, 0, 0, kernel=5) == [4]


def test_a_black_image_has_no_fixations():
    weight, seen = look(np.zeros((64, 64, 1), np.float32))
    assert not weight.any()
    assert not seen.any()


def test_the_same_thing_elsewhere_is_described_by_the_same_features_but_for_its_location():
    """Of the encoder, a whole cell further: all the same; black cells are all the same, too."""
    settings = small_models.glimpse()
    encode = jax.jit(model.bind(lambda vae, x: vae.encode(x).mean, module_of(settings)))
    x = jnp.stack([scene((20, 30)), scene((28, 38)), scene()])
    here, there, black = np.asarray(encode(initialised(settings), x))
    changed = np.argwhere(np.abs(here - black[0, 0]).max(-1) > 1e-3)
    assert len(changed) == 1
    (cell,) = changed
    np.testing.assert_allclose(there[tuple(cell + 1)], here[tuple(cell)], atol=1e-4)
    np.testing.assert_allclose(black, np.broadcast_to(black[0, 0], black.shape), atol=1e-6)


def test_a_shape_learned_at_some_locations_is_drawn_at_others():
    """What a plain network has to learn at each position in a cell."""
    settings = small_models.glimpse(width=16, latents=4)
    module = module_of(settings)
    corners = np.add(list(np.ndindex(8, 8)), (4, 6))
    is_known = np.arange(64) % 5 > 0
    images = np.stack([scene(corner, size=(24, 24)) for corner in corners])

    @jax.jit
    def distances(variables):
        means = model.bind(vae.reconstruct, module)(variables, images)
        return jnp.abs(means - images).sum((1, 2, 3)) / images[0].sum()

    def cross_entropy(variables):
        x = images[is_known]
        logits = model.bind(lambda v, x: v.decode(v.encode(x).mean, x.shape[1:3]), module)
        return optax.sigmoid_binary_cross_entropy(logits(variables, x), x).sum((1, 2, 3)).mean()

    optimizer = optax.adam(2e-2)

    @jax.jit
    def step(variables, state):
        updates, state = optimizer.update(jax.grad(cross_entropy)(variables), state)
        return optax.apply_updates(variables, updates), state

    variables = jax.jit(lambda: dict(model.initialise(module, jax.random.key(0))))()
    state = jax.jit(optimizer.init)(variables)
    for _ in range(160):
        variables, state = step(variables, state)
    found = np.asarray(distances(variables))
    assert found[is_known].mean() < 0.1
    assert found[~is_known].mean() < 0.2  # of the foreground pixels; 2 if nothing is right


@pytest.mark.parametrize("kernel", [18, 15])
def test_a_glimpse_of_an_even_size_or_of_less_than_two_cells_is_refused(kernel):
    with pytest.raises(ValueError, match=f"kernel={kernel} must be odd and more than 16"):
        small_models.glimpse(kernel=kernel)


def test_settings_of_another_architecture_are_refused():
    sizes = {"channels": 1, "width": 4, "latents": 2}
    with pytest.raises(ValueError, match="BaselineSettings: kernel is unknown"):
        vae.baseline_settings({**sizes, "space_to_depth": 1, "kernel": 17})
    with pytest.raises(ValueError, match="GlimpseSettings: space_to_depth is unknown"):
        vae.baseline_settings(
            {**sizes, "architecture": "glimpse", "space_to_depth": 1, "kernel": 17}
        )
    with pytest.raises(ValueError, match="architecture='other': expected one of baseline, glimpse"):
        vae.baseline_settings({**sizes, "architecture": "other"})
