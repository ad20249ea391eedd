"""Grey images as a model sees them, and the way back to the user's pixels."""

import numpy as np
import pytest
import skimage.filters

from lavae_jax import normalisation, objects
from lavae_jax.gaussian_pixels import GaussianPixels
from lavae_jax.preprocessing import ImageError, Preprocessing

SIDE = 96
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE].astype(np.float32)


def discs(centres, radius, side=SIDE, level=0.5):
    """[H, W, 1]: discs without a background, with soft edges."""
    rows, columns = np.mgrid[:side, :side]
    distance = [np.hypot(rows - r, columns - c) for r, c in centres]
    image = np.clip(radius + 0.5 - np.array(distance), 0, 1).max(0, initial=0)
    return (level * image).astype(np.float32)[..., None]


GRID = [(r, c) for r in (16, 48, 80) for c in (16, 48, 80)]


def noise(seed=0, deviation=0.02, side=SIDE):
    return deviation * np.random.default_rng(seed).standard_normal((side, side, 1))


GRADIENT = (0.1 + 0.3 * ROWS / SIDE + 0.2 * COLUMNS / SIDE)[..., None]
EMPTY = {
    "black": np.zeros((SIDE, SIDE, 1)),
    "even": np.full((SIDE, SIDE, 1), 0.3),
    "noise": 0.3 + noise(),
    "a gradient": GRADIENT,
    "a gradient with noise": GRADIENT + noise(),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_image_stays_black_and_shows_no_object(name):
    levels = normalisation.normalise(EMPTY[name].clip(0, 1))
    assert levels.shape == (SIDE, SIDE, 1)
    assert levels.max() < 0.4  # the usual object has 0.5
    assert len(normalisation.diameters(levels)) == 0


def test_specks_are_not_measured_as_objects():
    image = 0.2 + noise()
    image[::17, ::13] += 0.5
    assert len(normalisation.diameters(normalisation.normalise(image.clip(0, 1)))) == 0


@pytest.mark.parametrize("level", [0.1, 0.4], ids=["dim", "bright"])
@pytest.mark.parametrize("light", ["a gradient", "even"])
def test_the_usual_object_has_a_level_of_one_half_whatever_the_light(level, light):
    image = EMPTY[light] + discs(GRID, 7, level=level)
    levels = normalisation.normalise(image.clip(0, 1))[..., 0]
    middles = np.array([levels[r, c] for r, c in GRID])
    np.testing.assert_allclose(np.median(middles), 0.5, atol=0.07)
    assert np.median(levels[discs(GRID, 10)[..., 0] == 0]) < 0.05


def test_the_background_is_found_even_if_objects_cover_most_of_an_image():
    crowd = [(r, c) for r in range(8, SIDE, 16) for c in range(8, SIDE, 16)]
    covered = discs(crowd, 6.5)[..., 0] > 0
    assert covered.mean() > 0.55
    levels = normalisation.normalise(0.1 + discs(crowd, 6.5))[..., 0]
    np.testing.assert_allclose([levels[at] for at in crowd], 0.5, atol=0.05)
    assert levels[~covered].max() < 0.1


def test_results_do_not_depend_on_the_part_of_the_range_that_a_camera_uses():
    image = (discs(GRID, 7) + noise()).clip(0, 1)
    twelve_bits = image / 16
    np.testing.assert_allclose(
        normalisation.normalise(twelve_bits), normalisation.normalise(image), atol=1e-3
    )


def test_otsu_finds_the_threshold_that_scikit_image_finds():
    values = np.random.default_rng(0).normal([[0.0], [3.0]], 1.0, (2, 5_000)).astype(np.float32)
    expected = skimage.filters.threshold_otsu(values.ravel())
    assert abs(normalisation.otsu(values) - expected) <= np.ptp(values) / 256 + 1e-6
    assert normalisation.otsu(np.full(9, 0.25)) == 0.25


def test_clumps_do_not_count_as_objects():
    pair = [(48, 30), (48, 43)]
    levels = normalisation.normalise(discs([*pair, (16, 75), (80, 75)], 7))
    np.testing.assert_allclose(normalisation.diameters(levels), [14, 14], atol=1.5)


@pytest.mark.parametrize("diameter", [5, 12, 24, 60])
def test_objects_of_any_size_become_twelve_pixels_wide(diameter):
    side = 8 * diameter
    at = (np.arange(4) + 0.5) * side / 4
    image = discs([(r, c) for r in at for c in at], diameter / 2, side)
    seen = Preprocessing(1, levels="grey", diameter=float(diameter))(image)
    np.testing.assert_allclose(normalisation.diameters(seen).mean(), 12, rtol=0.2)
    # So cost does not grow with their size.
    np.testing.assert_allclose(seen.shape[:2], 8 * 12, rtol=0.2)


def test_with_few_objects_the_diameter_is_close_to_that_of_the_collection():
    assert normalisation.usual_diameter(np.array([]), 20.0) == 20.0
    several = normalisation.usual_diameter(np.full(4, 10.0), 20.0)
    np.testing.assert_allclose(several, np.sqrt(10 * 20))  # as many as the collection counts for
    many = normalisation.usual_diameter(np.full(10_000, 10.0), 20.0)
    np.testing.assert_allclose(many, 10, rtol=1e-3)
    # One clump does not change the median of six: the ratio is 10 / 20, to the power of 6 / 10.
    clump = normalisation.usual_diameter(np.array([10.0] * 5 + [300]), 20.0)
    np.testing.assert_allclose(clump, 20 * 0.5**0.6)
    outlier = normalisation.usual_diameter(np.full(10_000, 900.0), 20.0)
    np.testing.assert_allclose(outlier, 20 * normalisation.MOST_ZOOM)


def test_channels_are_normalised_together():
    grey = discs(GRID, 7)
    coloured = np.concatenate([grey, 0.25 * grey, 0 * grey], axis=-1)
    levels = normalisation.normalise(coloured)
    at = GRID[4]
    # Square roots: a quarter of the light is half of the level.
    np.testing.assert_allclose(levels[at] / levels[at][0], [1, 0.5, 0], atol=0.05)


def test_boxes_and_centres_come_back_in_the_users_pixels():
    seen = objects.Measured(9.5, 3.5, 8, 2, 4, 4, 0.9, None)  # rows 8 to 11, columns 2 to 5
    found = objects._in_image(seen, (20, 10), (60, 20))
    # Three and two times as many pixels: rows 24 to 35, columns 4 to 11.
    assert found == objects.Measured(29.5, 7.5, 24, 4, 12, 8, 0.9, None)
    assert objects._in_image(seen, (20, 10), (20, 10)) == seen
    small = objects._in_image(seen, (20, 10), (2, 1))
    assert small.height == small.width == 1


def test_a_drawn_object_is_measured_where_it_is_in_the_users_image():
    image = discs([(120, 200)], 24, side=288)
    preprocessing = Preprocessing(1, levels="grey", diameter=48.0)
    grey = preprocessing.grey(image)
    x = preprocessing.seen(grey)
    assert x.shape[:2] == (72, 72)
    at = np.array([[30, 50]])
    sprite = np.pad(x, ((15, 15), (15, 15), (0, 0)))[30:61, 50:81]
    (found,) = objects.measure(
        at, sprite[None], np.ones(1), (72, 72), grey, GaussianPixels(0.1), grey.shape[:2]
    )
    np.testing.assert_allclose([found.row, found.column], [120, 200], atol=1)
    np.testing.assert_allclose([found.top, found.left], [96, 176], atol=4)
    np.testing.assert_allclose([found.height, found.width], [48, 48], atol=8)
    np.testing.assert_allclose(found.brightness, 0.5, atol=0.06)


def test_a_config_without_levels_is_binary_and_one_with_grey_levels_has_a_diameter():
    model = {"channels": 1}
    assert Preprocessing.of_config({"model": model}) == Preprocessing(1)
    config = {"model": model, "dataset": {"levels": "grey", "diameter": "15.6", "invert": True}}
    assert Preprocessing.of_config(config) == Preprocessing(1, True, "auto", "grey", 15.6)
    with pytest.raises(ImageError, match="usual diameter"):
        Preprocessing(1, levels="grey")
    with pytest.raises(ImageError, match="binary"):
        Preprocessing(1, levels="gray")


def test_the_grey_likelihood_is_a_density():
    likelihood = GaussianPixels(0.1)
    for intensity in (0.0, 0.4, 1.7):
        x = np.linspace(intensity - 2, intensity + 2, 8_001)
        density = np.exp(np.asarray(likelihood.log_prob(x, np.full_like(x, intensity)), float))
        np.testing.assert_allclose(np.trapezoid(density, x), 1, rtol=1e-4)
        np.testing.assert_allclose(np.trapezoid(density * x, x), intensity, atol=1e-4)
