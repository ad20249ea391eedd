"""The entropy of a data set of scenes, computed by counting layouts."""

import itertools
import math

import numpy as np


def count_layouts(n: int, box: int, canvas: int) -> int:
    """Counts the ordered layouts of boxes on a canvas without overlap, by inclusion-exclusion.

    The sum is over the sets of pairs that overlap. Two boxes overlap if their rows do and their
    columns do, so each set's number of layouts is the square of that in one dimension.

    Args:
        n: the number of boxes.
        box: height and width of a box.
        canvas: height and width of the canvas.

    Returns:
        The exact number of layouts.
    """
    span = canvas - box + 1
    near = np.abs(np.subtract.outer(np.arange(span), np.arange(span))) < box
    pairs = list(itertools.combinations(range(n), 2))
    total = 0
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        edges = [pair for pair, c in zip(pairs, chosen, strict=True) if c]
        total += (-1) ** len(edges) * _count_one_dimension(n, edges, near) ** 2
    return total


def _count_one_dimension(n: int, edges: list[tuple[int, int]], near: np.ndarray) -> int:
    """Counts the placements of n intervals on a line where those joined by an edge overlap."""
    letters = "abcdefgh"
    terms = [letters[i] + letters[j] for i, j in edges] + [letters[i] for i in range(n)]
    ones = np.ones(len(near), np.int64)
    operands = [near.astype(np.int64)] * len(edges) + [ones] * n
    return int(np.einsum(",".join(terms) + "->", *operands, optimize=True)) if n else 1


def entropy(sprites: np.ndarray, counts: range, canvas: int) -> float | None:
    """Computes the entropy of a data set, a lower bound on the expected -log p(x) of any model.

    A scene is a count, a layout and a sprite in each box; the order of the boxes is not visible.
    Identical sprites count as one.

    Args:
        sprites: [K, box, box, C].
        counts: the numbers of objects, all with the same probability.
        canvas: height and width of a scene.

    Returns:
        The entropy in nats; None for more than 4 objects, where counting layouts takes too long.
    """
    if max(counts) > 4:
        return None
    _, copies = np.unique(sprites.reshape(len(sprites), -1), axis=0, return_counts=True)
    p = copies / copies.sum()
    sprite_entropy = -(p * np.log(p)).sum()
    box = sprites.shape[1]
    by_count = [
        math.log(count_layouts(n, box, canvas)) - math.lgamma(n + 1) + n * sprite_entropy
        for n in counts
    ]
    return math.log(len(counts)) + float(np.mean(by_count))
