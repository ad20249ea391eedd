"""Classical segmentation of pictures whose objects are known."""

import numpy as np
import pytest
import sklearn.metrics

import datasets
from lavae_jax import classical, evaluation

METHODS = list(classical.METHODS.values())


def discs(*discs, channels=1, canvas=(40, 60)):
    """An image of discs (row, column, radius[, colour]); later ones occlude earlier ones."""
    rows, columns = np.indices(canvas)
    image = np.zeros((*canvas, channels))
    for row, column, radius, *colour in discs:
        image[(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = colour or 1
    return image


@pytest.mark.parametrize("method", METHODS)
def test_separate_objects_are_one_segment_each(method):
    image = discs((10, 10, 6), (25, 40, 9), (30, 12, 4))
    labels = method(image)
    np.testing.assert_array_equal(labels > 0, image[..., 0] > 0)
    centres = {tuple(np.round(c)) for c in evaluation.true_centres(labels)}
    assert centres == {(10, 10), (25, 40), (30, 12)}
    assert method(np.zeros((8, 8, 1))).max() == 0


@pytest.mark.parametrize("method", METHODS)
def test_small_components_are_dropped(method):
    image = np.zeros((20, 20, 1))
    image[2:4, 2:6] = 1  # 8 pixels
    image[10, 10:17] = 1  # 7
    labels = method(image)
    assert labels.max() == 1
    assert (labels > 0).sum() == 8


def test_diagonal_neighbours_are_connected():
    image = np.eye(12)[..., None]
    np.testing.assert_array_equal(classical.connected_components(image), np.eye(12))


@pytest.mark.parametrize("method", METHODS)
def test_touching_objects_of_different_colours_are_told_apart(method):
    image = discs((15, 15, 8, 1, 0, 0), (15, 22, 8, 1, 1, 0), (15, 45, 6, 1, 0, 0), channels=3)
    labels = method(image)
    assert labels.max() == 3
    colours = image @ [1, 2, 4]
    foreground = colours > 0
    assert sklearn.metrics.homogeneity_score(colours[foreground], labels[foreground]) == (
        pytest.approx(1)
    )
    assert len(np.unique(labels[:, 40:])) == 2


def test_watershed_cuts_overlapping_objects_that_are_one_component():
    image = discs((20, 18, 9), (20, 33, 9))
    assert classical.connected_components(image).max() == 1
    labels = classical.watershed(image)
    assert labels.max() == 2
    np.testing.assert_array_equal(labels > 0, image[..., 0] > 0)
    assert np.unique(labels[20, 18:25]).size == np.unique(labels[20, 27:33]).size == 1
    assert labels[20, 18] != labels[20, 33]


def test_grey_images_have_one_threshold_between_their_levels():
    levels = np.where(discs((10, 10, 6))[None] > 0, 0.6, 0.1)
    assert 0.1 <= classical.threshold(levels) < 0.6
    assert classical.threshold(np.zeros((2, 4, 4, 1))) == 0.5
    assert classical.threshold(np.array([0.0, 1, 1]).reshape(1, 1, 3, 1)) == 0.5


class Drawn:
    """Scenes in memory, as a source."""

    def __init__(self, drawn):
        self.drawn = drawn

    def __len__(self):
        return len(self.drawn.count)

    def read(self, index, draws=None):
        batch = {k: v[list(index)] for k, v in self.drawn._asdict().items()}
        return {**batch, "image": batch["image"].astype(np.float32) / 255}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_evaluated_without_a_likelihood(method):
    """Shapes of multi-dSprites that are apart are found exactly."""
    drawn = datasets.make_builder("multi_dsprites", apart=21).draw(40, seed=0)
    scores = evaluation.evaluate_classical(method, Drawn(drawn))
    assert scores["images"] == 40
    assert scores["count_accuracy"] == scores["recall"] == scores["precision"] == 1
    assert scores["count_mean_absolute_error"] == scores["mostly_hidden"] == 0
    assert scores["count_accuracy_visible"] == scores["foreground_ari"] == 1
    assert scores["centre_distance_95"] < 1e-5
    assert not {"neg_bound", "disentanglement", "calibration"} & set(scores)
    assert "count accuracy 100.00%" in evaluation.describe("test", scores)


def test_hidden_objects_are_missed_and_marked():
    """In crowds, some shapes are hidden; no method can count those."""
    drawn = datasets.make_builder("multi_dsprites/anywhere").draw(60, seed=0, counts=(7, 7))
    scores = evaluation.evaluate_classical(classical.connected_components, Drawn(drawn))
    marked = (drawn.hidden > 0.75).any(1)
    assert scores["mostly_hidden"] == pytest.approx(marked.mean())
    assert 0 < marked.mean() < 1
    assert scores["count_accuracy_visible"] > scores["count_accuracy"]
    assert scores["recall"] < 1
