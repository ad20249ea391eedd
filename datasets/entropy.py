"""The entropy of a data set of scenes, by counting its layouts."""

import itertools
import math

import numpy as np


def count_layouts(n: int, box: int, canvas: int) -> int:
    """Ordered layouts of n boxes on the canvas without overlap, by inclusion-exclusion.

    Over the sets of pairs that overlap: boxes overlap if their rows do and their columns
    do, so each set's number of layouts is the square of that in one dimension.
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
    """Positions of n intervals such that those joined by an edge overlap."""
    letters = "abcdefgh"
    terms = [letters[i] + letters[j] for i, j in edges] + [letters[i] for i in range(n)]
    ones = np.ones(len(near), np.int64)
    operands = [near.astype(np.int64)] * len(edges) + [ones] * n
    return int(np.einsum(",".join(terms) + "->", *operands, optimize=True)) if n else 1


def entropy(sprites: np.ndarray, counts: range, canvas: int) -> float | None:
    """The entropy of a data set, in nats: no model's mean -log p(x) can be below it.

    A scene is a count, a layout and a sprite in each box; the order of the boxes does not
    show. Sprites that look the same count as one. None for more than 4 objects, where
    counting layouts takes too long.
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
