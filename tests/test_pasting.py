"""Grey scenes that are pasted together of objects that stand alone."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import skimage.measure
from jax.test_util import check_grads
from test_normalisation import discs

from lavae_jax import gaussian, normalisation
from lavae_jax.training import pasting

CANVAS = (48, 64)


@pytest.fixture(scope="module")
def disc():
    """[2, 31, 31, 1]: discs of 12 and 8 pixels."""
    return np.stack([discs([(15, 15)], radius, side=31) for radius in (6, 4)])


@pytest.fixture(scope="module")
def compose(disc):
    """Scenes of up to five discs, for keys."""
    return jax.jit(lambda keys: pasting.compose(disc, keys, CANVAS, 5))


@pytest.fixture(scope="module")
def scenes(compose):
    return jax.tree.map(np.asarray, compose(jax.random.split(jax.random.key(3), 64)))


def test_only_whole_solid_objects_that_nothing_touches_are_cut_out():
    alone, pair, cut = [(20, 20), (70, 60)], [(20, 60), (20, 69)], [(46, 0)]
    image = discs([*alone, *pair, *cut], 6)
    found = pasting.isolated(image, 31)
    assert found.shape == (2, 31, 31, 1)
    rows, columns = np.mgrid[-15:16, -15:16]
    for one in found[..., 0]:
        np.testing.assert_allclose(
            [(one * rows).sum(), (one * columns).sum()] / one.sum(), 0, atol=0.1
        )
        np.testing.assert_allclose((one > 0.25).sum(), np.pi * 6**2, rtol=0.1)
    # Not what is too large for the square.
    assert len(pasting.isolated(image, 11)) == 0
    # Not what is so close to another component that its surroundings would show it.
    for distance, number in ((14, 0), (18, 2)):
        two = discs([(20, 20), (20, 20 + distance)], 6)
        assert skimage.measure.label(normalisation.foreground(two, smoothing=0.7)).max() == 2
        assert len(pasting.isolated(two, 31)) == number


def test_objects_repeat_where_there_are_too_few_and_none_is_an_error(disc):
    image = discs([(20, 20), (70, 60)], 6)[None]
    five = pasting.collect([image, image], 31, 1, 5)
    assert five.shape == (5, 31, 31, 1)
    np.testing.assert_array_equal(five[4], five[0])
    with pytest.raises(ValueError, match="stands alone"):
        pasting.collect([np.zeros((2, 40, 40, 1))], 31, 1, 5)


def test_a_scene_belongs_to_its_key(compose, scenes):
    keys = jax.random.split(jax.random.key(3), 64)
    backwards = compose(keys[::-1])
    np.testing.assert_array_equal(backwards.pixel[::-1], scenes.pixel)
    np.testing.assert_allclose(backwards.image[::-1], scenes.image, atol=1e-5)


def test_marks_are_at_the_centre_of_the_visible_part_of_an_object(scenes):
    """What an object is alone is drawn around its mark, and is in the scene, too."""
    half = scenes.windows.shape[2] // 2
    rows, columns = np.mgrid[-half : half + 1, -half : half + 1]
    seen_objects = 0
    for image, count, pixel, windows in zip(*scenes, strict=True):
        for at, window in zip(pixel[:count], windows[:count, ..., 0], strict=True):
            row, column = divmod(int(at), CANVAS[1])
            assert row < CANVAS[0]
            own = window > 0.5 * window.max()
            centre = [(own * rows).sum(), (own * columns).sum()] / own.sum()
            is_alone = count == 1
            np.testing.assert_allclose(centre, 0, atol=1.5 if is_alone else 5)
            # Neither blur nor noise hides it: the mean over its middle is bright.
            there = image[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].mean()
            assert there > 0.1
            seen_objects += 1
    assert seen_objects == scenes.marked.sum() > 64


def test_what_a_brighter_object_hides_does_not_move_a_mark(disc, monkeypatch):
    """Two discs that overlap, of which the brighter one is seen."""
    for name, value in {"APART": (0.3, 0.6), "SCALED": 0.0, "STRETCH": 0.0}.items():
        monkeypatch.setattr(pasting, name, value)
    monkeypatch.setattr(pasting, "_photograph", lambda image, key: image)  # slow to compile
    keys = jax.random.split(jax.random.key(5), 64)
    scenes = jax.jit(lambda keys: pasting.compose(disc[:1], keys, CANVAS, 2))(keys)
    moved, half = 0.0, disc.shape[1] // 2
    for count, pixel, windows in zip(*map(np.asarray, scenes[1:]), strict=True):
        levels = np.zeros((2, CANVAS[0] + 2 * half, CANVAS[1] + 2 * half))
        marks = np.stack(np.divmod(pixel, CANVAS[1]), -1)
        for level, (row, column), window in zip(levels, marks, windows[..., 0], strict=True):
            level[row : row + 2 * half + 1, column : column + 2 * half + 1] = window
        levels = levels[:, half:-half, half:-half]
        for mark, own, other in zip(marks[:count], levels, levels[::-1], strict=False):
            is_own = own > pasting.EXTENT * np.square(own).sum() / own.sum()
            centre = np.argwhere(is_own & (own >= other)).mean(0)
            np.testing.assert_allclose(mark, centre, atol=0.75)  # it is rounded
            moved = max(moved, np.abs(np.argwhere(is_own).mean(0) - centre).max())
    assert moved > 2


def test_scenes_have_zero_to_max_objects_and_levels_from_zero_to_one(scenes):
    assert set(scenes.count) == set(range(6))
    assert scenes.image.shape == (64, *CANVAS, 1)
    assert scenes.image.min() >= 0
    assert scenes.image.max() <= 1
    assert not scenes.marked[scenes.count == 0].any()


def test_objects_touch_but_do_not_cover_each_other(scenes):
    nearest = []
    for count, pixel in zip(scenes.count, scenes.pixel, strict=True):
        at = np.stack(np.divmod(pixel[:count], CANVAS[1]), -1)
        if count > 1:
            distance = np.linalg.norm(at[:, None] - at, axis=-1)
            nearest.append(distance[np.triu_indices(count, 1)].min())
    # Radii are from 2 to 11 pixels; the nearest two are at least 0.75 of their sum apart.
    assert min(nearest) >= pasting.APART[0] * 4 - 2
    assert np.mean(np.array(nearest) < 14) > 0.3


@pytest.mark.parametrize(("radius", "least"), [(6, 0.2 * np.pi * 6**2), (2, 10)])
def test_objects_count_if_a_fifth_of_them_and_ten_pixels_are_visible(radius, least, monkeypatch):
    """Of one disc at a time, the border of a small canvas hides a part."""
    monkeypatch.setattr(pasting, "SCALED", 0.0)
    monkeypatch.setattr(pasting, "STRETCH", 0.0)
    monkeypatch.setattr(pasting, "BRIGHTNESS", (1.0, 1.0))
    discs_alone = discs([(15, 15)], radius, side=31)[None]
    keys = jax.random.split(jax.random.key(0), 400)
    scenes = jax.jit(lambda keys: pasting.compose(discs_alone, keys, (12, 12), 1))(keys)
    visible = (np.asarray(scenes.windows) > 0.2).sum((1, 2, 3, 4))  # soft edges: a few more or less
    is_counted = np.asarray(scenes.count) == 1
    assert 0.75 * least < visible[is_counted].min() < 1.5 * least
    assert visible[~is_counted].max() < 1.5 * least


# --- training on them ----------------------------------------------------------

LATENTS, WINDOW, DEVIATION = 2, 5, 0.2


def module(features, decode):
    """What the loss uses of a LAVAE: features [P, 2 L] of windows, and sprites of z_app [P, L]."""

    def appearance(windows):
        return features(windows)[:, None, None]

    appearance.radius = WINDOW // 2
    settings = types.SimpleNamespace(
        latent_size=LATENTS, likelihood="gaussian", pixel_deviation=DEVIATION
    )
    lavae = types.SimpleNamespace(appearance=appearance, decoder=decode)
    return types.SimpleNamespace(lavae=lavae, settings=settings)


def test_the_loss_of_portraits_is_the_negative_elbo_of_each_object_alone(disc):
    keys = jax.random.split(jax.random.key(1), 8)
    row = jnp.array([0.5, -1.0, 0.2, -0.4])
    sprite = jnp.asarray(disc[0]) * 0.8 + 0.05
    stub = module(
        lambda x: jnp.tile(row, (len(x), 1)), lambda z: jnp.tile(sprite, (len(z), 1, 1, 1))
    )

    @jax.jit
    def loss_and_scenes(keys):
        scene_keys = jax.vmap(jax.random.split, out_axes=1)(keys)[0]
        scenes = pasting.compose(disc, scene_keys, CANVAS, 3)
        return pasting.portrait_loss(stub, disc, keys, CANVAS, 3), scenes

    (loss, metrics), scenes = loss_and_scenes(keys)
    counted = np.arange(3) < np.asarray(scenes.count)[:, None]
    assert 0 < counted.sum() < counted.size
    log_p = scipy.stats.norm(np.asarray(sprite), DEVIATION).logpdf(np.asarray(scenes.windows))
    expected = -log_p.sum((2, 3, 4))[counted].mean()
    q = gaussian.from_features(row)
    variance = np.exp(q.log_variance)
    kl = 0.5 * (q.mean**2 + variance - 1 - np.log(variance)).sum()
    np.testing.assert_allclose(metrics["object_neg_log_likelihood"], expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["object_kl"], kl, rtol=1e-5)
    np.testing.assert_allclose(loss, expected + kl, rtol=1e-4)


def test_the_gradient_of_the_loss_of_portraits_is_that_of_finite_differences(disc):
    rng = np.random.default_rng(0)
    shapes = {"encode": (WINDOW * WINDOW, 2 * LATENTS), "decode": (LATENTS, disc[0].size)}
    params = {name: jnp.asarray(0.1 * rng.normal(size=shape)) for name, shape in shapes.items()}
    keys = jax.random.split(jax.random.key(2), 2)

    @jax.jit
    def loss(params):
        stub = module(
            lambda x: x.reshape(len(x), -1) @ params["encode"],
            lambda z: (z @ params["decode"]).reshape(-1, *disc[0].shape),
        )
        return pasting.portrait_loss(stub, disc, keys, CANVAS, 2)[0] / 1_000

    check_grads(loss, (params,), 1, modes="rev", rtol=2e-2)
