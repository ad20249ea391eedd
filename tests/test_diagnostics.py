"""Diagnostics of q(z_loc), by hand on small canvases."""

import jax.numpy as jnp
import numpy as np
from small_models import small

from lavae_jax import diagnostics, inference


def test_two_samples_of_one_object_are_a_duplicate():
    width = 10
    pixel = jnp.array([[0, 3 * width + 3, 9], [0, 4 * width, 9], [0, 1, 99], [0, 1, 99]])
    count = jnp.array([3, 3, 2, 1])  # the last image has one object, so its second pixel is unused
    found = diagnostics.has_duplicate(pixel, count, width, reach=3)
    np.testing.assert_array_equal(found, [True, False, True, False])


def test_the_entropy_of_locations_is_the_mean_over_objects():
    """One object in a corner, with four equally likely pixels, and one that is certain."""
    h_loc = np.full((2, 9, 12), -1e9)
    h_loc[:, :2, :2] = 3.0
    h_loc[:, 7, 10] = 50.0  # likelier than the other, which makes no difference
    pixel = jnp.array([[0, 7 * 12 + 10, 5], [7 * 12 + 10, 0, 0]])
    entropy = diagnostics.location_entropy(jnp.array(h_loc), pixel, jnp.array([2, 1]), radius=2)
    np.testing.assert_allclose(entropy, [np.log(4) / 2, 0], atol=1e-6)


def test_peak_heights_are_the_lowest_true_and_the_highest_false_one():
    settings = small(peak_radius=1)
    h_loc = np.zeros((3, 12, 12))
    for row, column, height in ((2, 2, 9), (2, 9, 7), (9, 2, 5), (9, 9, 3)):
        h_loc[:, row, column] = height
    true, false = diagnostics.peak_heights(settings, jnp.array(h_loc), jnp.array([3, 1, 0]))
    np.testing.assert_array_equal(true[:2], [5, 9])
    np.testing.assert_array_equal(false, [3, 7, 9])


def test_diagnostics_of_images_without_objects_are_left_out():
    settings = small(peak_radius=1, gamma=2.0, threshold=2.0)
    h_loc = np.zeros((2, 16, 16), np.float32)
    h_loc[1, 4, 4] = 100.0
    detection = inference.detect(settings, jnp.array(h_loc))
    drawn, used = jnp.array([[0, 1], [4 * 16 + 4, 7]]), jnp.array([0, 1])
    made = diagnostics.location_diagnostics(settings, detection, drawn, used, detection.count)
    for name in ("location_entropy", "peak_margin"):
        np.testing.assert_array_equal(made[name].valid, [False, True])
    np.testing.assert_array_equal(made["duplicate_samples"].valid, [False, False])
    gamma = settings.gamma_for((16, 16))
    np.testing.assert_allclose(made["peak_margin"].value[1], 100 / gamma - 2, rtol=1e-6)
    np.testing.assert_allclose(made["false_peak_margin"].value, [2, 2], rtol=1e-6)
    np.testing.assert_allclose(made["location_entropy"].value[1], 0, atol=1e-6)


def test_an_image_with_fewer_peaks_than_objects_has_a_finite_margin():
    true, false = diagnostics.peak_heights(small(), jnp.full((1, 8, 8), 0.5), jnp.array([2]))
    np.testing.assert_array_equal(true, [0.5])
    np.testing.assert_array_equal(false, [-np.inf])
