"""Metrics against hand-worked cases, brute force and independent code."""

import itertools

import handmade
import numpy as np
import pytest
from handmade import picture

from datasets import scenes
from lavae_jax import evaluation


def test_counts_are_scored():
    scores = evaluation.count_scores(np.array([0, 1, 2, 2, 4]), np.array([0, 1, 1, 2, 3]))
    assert scores["count_accuracy"] == pytest.approx(0.6)
    assert scores["overcounted"] == pytest.approx(0.4)
    assert scores["undercounted"] == 0
    assert scores["count_confusion"] == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(("n", "m"), [(3, 3), (2, 4), (4, 2), (0, 3)])
def test_matching_is_optimal(n, m):
    rng = np.random.default_rng(0)
    one, other = rng.uniform(size=(n, 2)), rng.uniform(size=(m, 2))
    i, j = evaluation.match(one, other)
    assert len(i) == min(n, m)
    small, large = (one, other) if n <= m else (other, one)
    best = min(
        np.linalg.norm(small - large[list(order)], axis=1).sum()
        for order in itertools.permutations(range(len(large)), len(small))
    )
    assert np.linalg.norm(one[i] - other[j], axis=1).sum() == pytest.approx(best)


def mask_of(*objects, canvas=(20, 24)):
    mask = np.zeros(canvas, np.uint8)
    for k, (row, column, is_pair) in enumerate(objects, start=1):
        mask[row, column : column + 1 + is_pair] = k
    return mask


OBJECTS = [[(3, 4, True), (10, 12, True), (17, 20, False)], [(0, 0, True), (19, 22, False)], []]


def test_a_perfect_model_has_perfect_scores():
    """Although it calls the left pixel of a pair its location: centres are of mass."""
    model = handmade.model()
    scene = model.infer(np.stack([picture(*o) for o in OBJECTS]))
    masks = np.stack([mask_of(*o) for o in OBJECTS])
    scores = evaluation.object_scores(scene, np.asarray(model.sprites(scene)), masks)
    assert np.isfinite(scores["distance"]).sum(1).tolist() == [3, 2, 0]
    assert np.nanmax(scores["distance"]) < 1e-3
    np.testing.assert_allclose(scores["foreground_ari"], [1, 1, np.nan])  # an empty scene has none


def test_a_lost_object_and_a_shift_show():
    model = handmade.model()
    scene = model.infer(np.stack([picture(*o) for o in OBJECTS]))
    masks = np.stack([mask_of(*o) for o in OBJECTS])
    shifted = scene.move(0, scene.location[:, 0] + np.array([0, 3])).remove(2)
    scores = evaluation.object_scores(shifted, np.asarray(model.sprites(shifted)), masks)
    assert np.isfinite(scores["distance"]).sum() == 4
    assert np.nanmax(scores["distance"]) == pytest.approx(3, abs=1e-3)
    assert scores["foreground_ari"][0] < 1


def test_disentanglement_of_a_perfect_model_is_total():
    model = handmade.model()
    images = np.stack([picture(*o) for o in OBJECTS])
    report = evaluation.disentanglement(model, model.infer(images))
    assert report["scenes"] == 2
    for edit in ("move", "appearance"):
        change = report[edit]
        assert change["objects"] == 3
        assert change["lost"] == 0
        assert change["location_unchanged"] == 1
        assert change["location_change_pixels"] == 0
        assert change["appearance_change_in_spreads"] < 1e-3


def test_placed_sprites_agree_with_the_composer():
    bank = scenes.Bank(np.ones((1, 5, 5, 1), np.uint8), {})
    drawn = scenes.compose(scenes.stream(0), bank, 5, (2, 2), canvas=20, max_objects=2)
    for image, locations in zip(drawn.image, drawn.locations, strict=True):
        placed = evaluation.placed_sprites(locations, np.ones((2, 5, 5, 1)), (20, 20))
        np.testing.assert_array_equal(placed.sum(0), image[..., 0] / 255)
