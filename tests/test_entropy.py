"""The entropy of a data set, against enumeration."""

import itertools

import numpy as np
import pytest

import datasets
from datasets.entropy import count_layouts, entropy


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
    assert count_layouts(n, box, canvas) == apart


def test_the_entropy_is_that_of_the_images():
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
    assert entropy(sprites, range(3), canvas) == pytest.approx(-(p * np.log(p)).sum())


def test_the_entropy_of_the_paper_s_data_is_near_the_known_numbers():
    """Below the cost of a model that places objects on all 4,096 pixels."""
    sprites = np.random.default_rng(0).integers(0, 2, (1_000, 15, 15, 1))
    assert 22 < entropy(sprites, range(4), 64) < 23.6
    assert entropy(sprites, range(7, 8), 64) is None


@pytest.mark.parametrize("dataset", ["multi_mnist/1k", "multi_dsprites"])
def test_a_builder_computes_the_entropy_of_its_splits(dataset):
    builder = datasets.make_builder(dataset, canvas=48, crowd=4, min_count=1, max_count=2)
    sprites = builder.make_bank().sprites
    assert builder.entropy("train") == builder.entropy("test") == entropy(sprites, range(1, 3), 48)
    assert builder.entropy("test_4") == entropy(sprites, range(4, 5), 48)
    assert datasets.make_builder(dataset).entropy("test_7") is None
