"""Objects that are drawn in another way, for composed scenes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from lavae_jax.training import distortions, sleep


def keys(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


def discs(number):
    """Filled ellipses near the middle of a window of 13x13."""
    rng = np.random.default_rng(0)
    at = np.arange(13) - 6
    drawn = []
    for _ in range(number):
        (row, column), (tall, wide) = rng.uniform(-0.5, 0.5, 2), rng.uniform(2, 5, 2)
        drawn.append(((at[:, None] - row) / tall) ** 2 + ((at - column) / wide) ** 2 <= 1)
    return np.array(drawn, np.float32)[..., None]


def centre_of(window):
    """By scipy, relative to the middle pixel."""
    return np.array(scipy.ndimage.center_of_mass(window.sum(-1))) - window.shape[0] // 2


def test_without_distortion_objects_only_get_a_margin():
    windows, margin = discs(4), distortions.MARGIN
    same = distortions.distort(windows, keys(4), 0.0)
    np.testing.assert_array_equal(same[:, margin:-margin, margin:-margin], windows)
    assert np.asarray(same).sum() == windows.sum()


@pytest.mark.parametrize("shift", [(0, 0), (0.4, -0.25)])
@pytest.mark.parametrize("scale", [(1, 1), (1.1, 1.05)])
def test_a_redrawn_object_is_interpolated_bilinearly(shift, scale):
    """By scipy, where the filter is as wide as a pixel and nothing is scaled down."""
    window, centre = discs(1)[0], np.array([0.3, -0.1])
    at = np.arange(13) - 6
    rows, columns = ((at - shift[k]) / scale[k] + centre[k] + 6 for k in (0, 1))
    places = np.meshgrid(rows, columns, indexing="ij")
    expected = scipy.ndimage.map_coordinates(window[..., 0], places, order=1, mode="grid-constant")
    drawn = distortions.redraw(window, centre, jnp.array(shift), jnp.array(scale), 1.0)
    np.testing.assert_allclose(drawn[..., 0], expected, atol=1e-5)


def test_scaling_down_preserves_the_level_inside_an_object():
    window = np.ones((13, 13, 1), np.float32)
    drawn = distortions.redraw(window, np.zeros(2), jnp.zeros(2), jnp.array([0.8, 0.9]), 1.3)
    np.testing.assert_allclose(drawn[4:9, 4:9], 1, atol=1e-5)


def test_a_wide_filter_and_a_low_threshold_thicken_strokes():
    window = np.zeros((9, 9, 1), np.float32)
    window[1:8, 4] = 1
    still = np.zeros(2), jnp.zeros(2), jnp.ones(2)
    plain = distortions.redraw(window, *still, 1.0) > 0.49
    thick = distortions.redraw(window, *still, 1.6) > 0.25 * 0.57
    np.testing.assert_array_equal(plain, window > 0)
    np.testing.assert_array_equal(np.flatnonzero(thick[4, :, 0]), [3, 4, 5])


def test_distorted_objects_are_binary_centred_and_of_other_sizes():
    windows = np.repeat(discs(8), 25, axis=0)
    drawn = np.asarray(distortions.distort(windows, keys(200), 1.0))
    assert set(np.unique(drawn)) == {0, 1}
    areas = drawn.sum((1, 2, 3)) / windows.sum((1, 2, 3))
    assert areas.min() > 0.4
    assert areas.min() < 0.85
    assert areas.max() > 1.15
    centres = np.array([centre_of(window) for window in drawn])
    assert np.abs(centres).max() < 0.75
    assert np.abs(centres).max() > 0.45
    half = np.asarray(distortions.distort(windows, keys(200), 0.5))
    m = distortions.MARGIN
    same = (half[:, m:-m, m:-m] == windows).all((1, 2, 3))
    assert same.mean() == pytest.approx(0.5, abs=0.12)


def test_no_stroke_disappears():
    """Lines that are one pixel wide, as far between two pixels as they can be."""
    window = np.zeros((1, 9, 9, 1), np.float32)
    window[0, 2:7, 4] = 1
    drawn = distortions.distort(np.repeat(window, 100, axis=0), keys(100), 1.0)
    assert np.asarray(drawn).any((1, 2, 3)).all()


@pytest.mark.parametrize("distorted_share", [0.0, 1.0])
def test_ambiguous_pixels_are_nearly_as_close_to_a_centre_as_the_marked_one(distorted_share):
    scenes = sleep.compose(discs(6), keys(30), (14, 17), 3, 0.5, distorted_share)
    ambiguous, marked = np.asarray(scenes.ambiguous), np.asarray(scenes.marked)
    expected = np.zeros_like(ambiguous)
    for b, count in enumerate(np.asarray(scenes.count)):
        for pixel, window in zip(scenes.pixel[b, :count], scenes.windows[b, :count], strict=True):
            centre = np.array(divmod(int(pixel), 17)) + centre_of(np.asarray(window))
            away = [np.abs(np.arange(n) - c) for n, c in zip((14, 17), centre, strict=True)]
            expected[b] |= np.maximum(away[0][:, None], away[1]) < 0.5 + sleep.AMBIGUOUS
    np.testing.assert_array_equal(ambiguous, expected & ~marked)
    assert ambiguous.any()
    assert not (ambiguous & marked).any()
