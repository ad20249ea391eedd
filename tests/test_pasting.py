"""Grey scenes that are pasted together of objects that stand alone."""

import jax
import numpy as np
import pytest
from test_normalisation import discs

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


def test_marks_are_in_the_middle_of_what_is_seen_of_an_object(scenes):
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


def test_scenes_have_no_to_all_objects_and_stay_within_the_levels(scenes):
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
