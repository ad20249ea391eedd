"""Which components an object may belong to, against distances computed one by one."""

import numpy as np
import pytest
from scipy.spatial import distance

from lavae_jax import neighbours


def digits(number, seed=0):
    """Strokes of a pen that goes about on 17x17 pixels."""
    rng = np.random.default_rng(seed)
    windows = np.zeros((number, 17, 17, 1), np.float32)
    location = np.full((number, 2), 8.0)
    for _ in range(12):
        location = np.clip(location + rng.normal(size=location.shape) * 1.5, 2, 14)
        windows[np.arange(number), *location.round().astype(int).T] = 1
    return windows


@pytest.mark.parametrize("number", [1, 7, neighbours.BATCH_SIZE + 3])
@pytest.mark.parametrize("near", [1, 8, 50])
def test_the_nearest_are_those_of_the_least_distance(number, near):
    rng = np.random.default_rng(0)
    sketches, references = (
        rng.normal(size=(n, neighbours.SKETCH_SIZE)).astype(np.float32) for n in (number, 50)
    )
    ours = neighbours.nearest(sketches, references, near)
    far = distance.cdist(sketches.astype(float), references.astype(float))
    assert ours.shape == (number, near)
    expected = np.sort(far)[:, :near]
    np.testing.assert_allclose(np.take_along_axis(far, ours, 1), expected, rtol=1e-4)


def test_nothing_is_near_where_there_is_nothing():
    none = np.zeros((0, neighbours.SKETCH_SIZE), np.float32)
    assert neighbours.nearest(none, none, 8).shape == (0, 8)


def test_sketches_are_about_as_far_apart_as_what_they_are_made_of():
    windows = digits(60)
    flat = windows.reshape(60, -1)
    sketches = np.asarray(neighbours.sketch(windows))
    apart, sketched = distance.pdist(flat), distance.pdist(sketches)
    assert np.corrcoef(apart, sketched)[0, 1] > 0.5
    np.testing.assert_allclose(np.std(sketched / apart) / np.mean(sketched / apart), 0, atol=0.25)
    np.testing.assert_array_equal(sketches, np.round(sketches))


def test_an_object_that_is_found_a_pixel_off_its_location_is_recognised():
    windows = digits(200)
    references = np.asarray(neighbours.sketch(windows))
    for axis in (1, 2):
        moved = np.asarray(neighbours.sketch(np.roll(windows, 1, axis)))
        near = neighbours.nearest(moved, references, neighbours.NEAR)
        known = (near == np.arange(200)[:, None]).any(1).mean()
        assert known > 0.6  # at random 0.04


def test_distinct_sketches_are_selected_before_duplicates():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, neighbours.SKETCH_SIZE))
    sketches = rows[[2, 2, 0, 1, 0, 3, 1]]
    for number, expected in ((3, [0, 2, 3]), (4, [0, 2, 3, 5]), (6, [0, 2, 3, 5, 1, 4])):
        assert neighbours.different(sketches, number).tolist() == expected
