"""Metrics against hand-worked cases, brute force and independent code."""

import itertools

import handmade
import numpy as np
import pytest
import sklearn.metrics
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


@pytest.mark.parametrize("seed", range(5))
def test_ari_is_scikit_learn_s(seed):
    rng = np.random.default_rng(seed)
    labels, predicted = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    predicted[:30] = labels[:30]
    expected = sklearn.metrics.adjusted_rand_score(labels, predicted)
    assert evaluation.adjusted_rand_index(labels, predicted) == pytest.approx(expected)
    assert evaluation.adjusted_rand_index(labels, labels * 7) == 1
    assert evaluation.adjusted_rand_index(np.ones(5), np.ones(5)) == 1


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
    assert len(scores["distance"]) == 5
    assert scores["distance"].max() < 1e-3
    np.testing.assert_allclose(scores["foreground_ari"], [1, 1])  # an empty scene has none


def test_a_lost_object_and_a_shift_show():
    model = handmade.model()
    scene = model.infer(np.stack([picture(*o) for o in OBJECTS]))
    masks = np.stack([mask_of(*o) for o in OBJECTS])
    shifted = scene.move(0, scene.location[:, 0] + np.array([0, 3])).remove(2)
    scores = evaluation.object_scores(shifted, np.asarray(model.sprites(shifted)), masks)
    assert len(scores["distance"]) == 4
    assert scores["distance"].max() == pytest.approx(3, abs=1e-3)
    assert scores["foreground_ari"][0] < 1


def test_disentanglement_of_a_perfect_model_is_total():
    model = handmade.model()
    images = np.stack([picture(*o) for o in OBJECTS])
    report = evaluation.disentanglement(model, images)
    assert report["scenes"] == 2
    for edit in ("move", "appearance"):
        change = report[edit]
        assert change["objects"] == 3
        assert change["lost"] == 0
        assert change["location_unchanged"] == 1
        assert change["location_change_pixels"] == 0
        assert change["appearance_change_in_spreads"] < 1e-3


@pytest.mark.parametrize(
    ("n", "box", "canvas"), [(0, 2, 4), (1, 2, 5), (2, 2, 4), (3, 2, 5), (3, 3, 7)]
)
def test_layouts_are_counted(n, box, canvas):
    cells = list(itertools.product(range(canvas - box + 1), repeat=2))
    apart = sum(
        all(
            max(abs(a[0] - b[0]), abs(a[1] - b[1])) >= box
            for a, b in itertools.combinations(layout, 2)
        )
        for layout in itertools.product(cells, repeat=n)
    )
    assert evaluation.count_layouts(n, box, canvas) == apart


def test_the_floor_is_the_entropy_of_the_images():
    """By enumeration of every scene of a tiny data set, two of whose sprites look the same."""
    sprites = np.zeros((4, 2, 2, 1), np.uint8)
    sprites[0] = 1
    sprites[1:3, 0, 0] = sprites[1:3, 1, 1] = 1
    sprites[3, 0, 1] = sprites[3, 1, 0] = 1
    canvas, probability = 5, {}
    cells = list(itertools.product(range(4), repeat=2))
    for n in range(3):
        layouts = [
            layout
            for layout in itertools.product(cells, repeat=n)
            if all(
                max(abs(a[0] - b[0]), abs(a[1] - b[1])) >= 2
                for a, b in itertools.combinations(layout, 2)
            )
        ]
        for layout in layouts:
            for kinds in itertools.product(range(4), repeat=n):
                image = np.zeros((canvas, canvas), np.uint8)
                for (row, column), kind in zip(layout, kinds, strict=True):
                    image[row : row + 2, column : column + 2] = sprites[kind, ..., 0]
                weight = 1 / 3 / len(layouts) / 4**n
                probability[image.tobytes()] = probability.get(image.tobytes(), 0) + weight
    p = np.array(list(probability.values()))
    assert p.sum() == pytest.approx(1)
    assert evaluation.entropy_floor(sprites, range(3), canvas) == pytest.approx(
        -(p * np.log(p)).sum()
    )


def test_the_floor_of_the_paper_s_data_is_near_the_known_figures():
    """Below the cost of a model that places objects on all 4,096 pixels."""
    sprites = np.random.default_rng(0).integers(0, 2, (1_000, 15, 15, 1))
    floor = evaluation.entropy_floor(sprites, range(4), 64)
    assert 22 < floor < 23.6
    assert evaluation.entropy_floor(sprites, range(7, 8), 64) is None


def test_placed_sprites_agree_with_the_composer():
    bank = scenes.Bank(np.ones((1, 5, 5, 1), np.uint8), {})
    drawn = scenes.compose(scenes.stream(0), bank, 5, (2, 2), canvas=20, max_objects=2)
    for image, locations in zip(drawn.image, drawn.locations, strict=True):
        placed = evaluation.placed_sprites(locations, np.ones((2, 5, 5, 1)), (20, 20))
        np.testing.assert_array_equal(placed.sum(0), image[..., 0] / 255)
