import math

import jax.numpy as jnp
import numpy as np
import pytest
from small_models import paper

from lavae_jax import counting

THRESHOLD, RADIUS, MOST = 16.0, 2, 4


def count(h_loc):
    return int(counting.count(peaks(h_loc), MOST))


def peaks(h_loc):
    return counting.peaks(jnp.asarray(h_loc), THRESHOLD, RADIUS)


def blank():
    return np.zeros((12, 15))


def test_separate_peaks_are_counted():
    h = blank()
    h[2, 3], h[2, 9], h[9, 5] = 20, 17, 30
    assert count(h) == 3
    np.testing.assert_array_equal(np.argwhere(peaks(h)), [[2, 3], [2, 9], [9, 5]])


def test_only_what_is_above_the_threshold_counts():
    h = blank()
    h[2, 3], h[8, 8] = THRESHOLD, np.nextafter(np.float32(THRESHOLD), np.float32(99))
    assert count(h) == 1
    assert count(blank()) == 0


def test_the_lower_of_two_close_peaks_is_not_counted():
    h = blank()
    h[5, 5], h[5, 5 + RADIUS] = 20, 19
    assert count(h) == 1
    h[5, 5 + RADIUS], h[5, 6 + RADIUS] = 0, 19
    assert count(h) == 2


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 2), (3, 5), (12, 15)])
def test_a_plateau_counts_once(shape):
    h = blank()
    h[: shape[0], : shape[1]] = 20
    assert count(h) == 1
    assert count(h[::-1, ::-1]) == 1


@pytest.mark.parametrize("corner", [(0, 0), (0, 14), (11, 0), (11, 14), (0, 7)])
def test_borders_count_as_the_inside_does(corner):
    h = blank() - 5
    h[corner] = 20
    assert count(h) == 1
    h[corner] = -1  # a maximum of a negative map is still under the threshold
    assert count(h) == 0


def test_no_more_than_m_objects_are_counted():
    h = blank()
    h[::4, ::4] = 20
    assert count(h) == MOST


def test_maps_of_a_batch_do_not_mix():
    h = np.stack([blank(), blank(), blank()])
    h[0, 11, 14], h[1, 0, 0], h[1, 6, 6] = 20, 20, 20
    np.testing.assert_array_equal(counting.count(peaks(h), MOST), [1, 2, 0])


def test_gamma_follows_log_d():
    settings = paper()
    assert settings.gamma_for((64, 64)) == 4.0
    for canvas in ((32, 32), (64, 128), (96, 96)):
        pixels = canvas[0] * canvas[1]
        assert settings.gamma_for(canvas) / settings.gamma_for((64, 64)) == pytest.approx(
            math.log(pixels) / math.log(4096)
        )
        assert settings.gamma_for(canvas) == pytest.approx(math.log(pixels) / 2, rel=0.05)


def test_a_hot_pixel_has_the_same_odds_on_every_canvas():
    """The purpose of the rule: e^h / (D - k + k e^h) = t does not depend on D."""
    t, k, gamma = 0.3, 3, {}
    for pixels in (1_024, 4_096, 16_384):
        h = math.log(t) + math.log(pixels - k) - math.log(1 - k * t)
        gamma[pixels] = h / counting.scale_with_canvas(4.0, pixels)
    assert max(gamma.values()) / min(gamma.values()) < 1.06
