"""Large images, tile by tile, give what whole ones give."""

import math
import warnings

import handmade
import numpy as np
import pytest
from conftest import SMALL

import datasets
import lavae_jax
from lavae_jax import placement, tiles


@pytest.fixture(scope="module")
def model():
    return lavae_jax.load("mnist1k")


@pytest.fixture(scope="module")
def crowd():
    """Two scenes with 24 digits each."""
    changes = {**SMALL, "canvas": 180, "max_count": 24}
    return datasets.make_builder("multi_mnist/1k", **changes).draw(2, 0, (24, 24)).image


@pytest.mark.parametrize(
    ("length", "margin", "multiple", "side"),
    [(100, 10, 4, 48), (101, 10, 4, 48), (48, 10, 4, 48), (49, 1, 1, 7), (4096, 40, 4, 512)],
)
def test_tiles_own_every_pixel_once_and_see_around_it(length, margin, multiple, side):
    made = tiles.spans(length, margin, multiple, side)
    owned = np.concatenate([np.arange(span.first, span.last) for span in made])
    np.testing.assert_array_equal(owned, np.arange(length))
    for span in made:
        assert span.start % multiple == 0
        assert span.stop - span.start < max(side, 2 * margin + 3 * multiple) + multiple
        assert span.start == 0 or span.first - span.start >= margin
        assert span.stop == length or span.stop - span.last >= margin


@pytest.mark.parametrize("canvas", [(180, 180), (177, 150)])
def test_a_large_image_gives_the_objects_of_the_whole(model, crowd, canvas, monkeypatch):
    images = crowd[:, : canvas[0], : canvas[1]]
    whole = model.infer(images, max_objects=30)
    rendered = model.render(whole)
    monkeypatch.setattr(tiles, "LARGE", 1_000)
    monkeypatch.setattr(tiles, "SIDE", 96)
    assert len(tiles.spans(canvas[0], model.settings.location.reach, 4, 96)) > 2
    assert model.infer(images, max_objects=math.inf).count.tolist() == whole.count.tolist()
    tiled = model.infer(images, max_objects=30)
    np.testing.assert_array_equal(tiled.count, whole.count)
    order, same = (np.lexsort(np.asarray(s.location[0]).T) for s in (tiled, whole))
    for name in ("location", "appearance", "score"):
        ours, theirs = (np.asarray(getattr(s, name)[0]) for s in (tiled, whole))
        np.testing.assert_allclose(ours[order], theirs[same], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.render(tiled), rendered, atol=1e-4)


def test_a_peak_is_compared_with_those_in_neighbouring_tiles(monkeypatch):
    """Of peaks within a radius larger than the network's reach, the first is kept."""
    model = handmade.model().with_settings(peak_radius=6)
    assert model.settings.location.reach < 6
    image = np.random.default_rng(0).random((60, 70, 1)) < 0.01
    (whole,) = model.detect(image)
    monkeypatch.setattr(tiles, "LARGE", 1_000)
    monkeypatch.setattr(tiles, "SIDE", 16)
    (tiled,) = model.detect(image)
    assert len(whole.location) < image.sum()
    np.testing.assert_array_equal(tiled.location, whole.location)


def test_objects_beyond_the_border_are_drawn_and_measured_on_the_nearest_pixel(model, crowd):
    scene = model.infer(crowd, max_objects=24)
    moved = scene.move(0, (-20, 300))
    drawn = [np.asarray(model.sprites(moved))[0], np.asarray(moved.location)[0]]
    whole = placement.compose(*drawn, moved.canvas)
    np.testing.assert_allclose(whole > 0.5, np.asarray(model.render(moved))[0] > 0.5)
    outside = model.measure(moved)[0][0]
    assert (outside.top, outside.left + outside.width) == (0, 180)
    with pytest.raises(ValueError, match="measure expects 2 images"):
        model.measure(moved, crowd[:, :90])


def test_the_number_of_objects_is_limited_only_by_max_objects(model, crowd):
    assert model.infer(crowd).count.tolist() == [24, 24]
    assert model.infer(crowd, max_objects=10).count.tolist() == [10, 10]
    assert model.infer(crowd, max_objects=math.inf).count.tolist() == [24, 24]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scene = model.infer(crowd, max_objects=24)
    assert scene.count.tolist() == [24, 24]


def test_images_of_different_sizes_are_a_list_of_scenes(model, crowd):
    images = [crowd[0], crowd[1, :120], crowd[1]]
    scenes = model.infer(images, max_objects=24)
    assert [scene.canvas for scene in scenes] == [(180, 180), (120, 180), (180, 180)]
    for image, scene in zip(images, scenes, strict=True):
        alone = model.infer(image, max_objects=24)
        np.testing.assert_array_equal(scene.location, alone.location)
