"""The numbers that a trained model is judged by: numpy on what the model gave."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from lavae_jax.api import Model
from lavae_jax.scene import Scene

# --- counting ----------------------------------------------------------------


def count_scores(inferred: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Accuracy, over- and under-counting, and the confusion matrix (rows: true counts)."""
    size = int(max(inferred.max(), true.max())) + 1
    confusion = np.zeros((size, size), int)
    np.add.at(confusion, (true, inferred), 1)
    return {
        "count_accuracy": float((inferred == true).mean()),
        "overcounted": float((inferred > true).mean()),
        "undercounted": float((inferred < true).mean()),
        "count_confusion": confusion.tolist(),
    }


# --- locations and masks -----------------------------------------------------


def true_centres(mask: np.ndarray) -> np.ndarray:
    """The centre of mass of each object's pixels in a mask [H, W]: [n, 2]."""
    return np.array([np.argwhere(mask == k).mean(0) for k in range(1, mask.max() + 1)]).reshape(
        -1, 2
    )


def placed_sprites(
    location: np.ndarray, sprites: np.ndarray, canvas: tuple[int, int]
) -> np.ndarray:
    """Each object alone on the canvas, the brightest channel: [n, H, W]."""
    n, h, w = sprites.shape[:3]
    padded = np.zeros((n, canvas[0] + h - 1, canvas[1] + w - 1), sprites.dtype)
    for k, (row, column) in enumerate(location):
        padded[k, row : row + h, column : column + w] = sprites[k].max(-1)
    return padded[:, h // 2 : h // 2 + canvas[0], w // 2 : w // 2 + canvas[1]]


def inferred_centres(placed: np.ndarray) -> np.ndarray:
    """The centre of mass of each placed sprite [n, H, W]: [n, 2]."""
    total = np.maximum(placed.sum((1, 2)), 1e-9)
    rows = placed.sum(2) @ np.arange(placed.shape[1]) / total
    columns = placed.sum(1) @ np.arange(placed.shape[2]) / total
    return np.stack([rows, columns], axis=-1)


def match(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points [n, 2] and [m, 2] with the least sum of distances."""
    if not len(one) or not len(other):
        return np.empty(0, int), np.empty(0, int)
    distance = np.linalg.norm(one[:, None] - other[None], axis=-1)
    return scipy.optimize.linear_sum_assignment(distance)


def adjusted_rand_index(labels: np.ndarray, predicted: np.ndarray) -> float:
    """How well two partitions of the same pixels agree: 1 if they are the same, 0 by chance."""
    _, a = np.unique(labels, return_inverse=True)
    _, b = np.unique(predicted, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)

    def pairs(n):
        return (n * (n - 1) / 2).sum()

    together, expected = pairs(table), pairs(table.sum(1)) * pairs(table.sum(0))
    expected /= max(pairs(np.array([table.sum()])), 1)
    most = (pairs(table.sum(1)) + pairs(table.sum(0))) / 2
    return 1.0 if most == expected else float((together - expected) / (most - expected))


def object_scores(scene: Scene, sprites: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Distances of matched centres, in pixels, and each scene's foreground ARI.

    The centre of an object is the centre of mass of its pixels, of the true ones and of
    its sprite on the canvas. So it does not count which pixel of an object the model
    calls its location, as long as the sprite makes up for it.
    """
    count, location = np.asarray(scene.count), np.asarray(scene.location)
    distances, ari = [], []
    for b, true_mask in enumerate(mask):
        placed = placed_sprites(location[b, : count[b]], sprites[b, : count[b]], true_mask.shape)
        ours, truth = inferred_centres(placed), true_centres(true_mask)
        i, j = match(ours, truth)
        distances.extend(np.linalg.norm(ours[i] - truth[j], axis=-1))
        foreground = true_mask > 0
        if foreground.any():
            bright = placed[:, foreground]
            owner = bright.argmax(0) + 1 if len(bright) else np.zeros(foreground.sum(), int)
            ari.append(adjusted_rand_index(true_mask[foreground], owner))
    return {"distance": np.array(distances), "foreground_ari": np.array(ari)}


# --- the floor ---------------------------------------------------------------


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


def entropy_floor(sprites: np.ndarray, counts: range, canvas: int) -> float | None:
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


# --- disentanglement ---------------------------------------------------------


def disentanglement(model: Model, images: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """What happens to the other objects when one is changed in latent space.

    Of each scene with two objects or more, the first is moved to the farthest place from
    the others, or given the appearance of a prior sample. The scene is rendered, its
    pixels rounded, and inferred again; the others should be where and what they were.
    """
    scene = model.infer(images)
    several = np.asarray(scene.count) >= 2
    scene = jax.tree.map(lambda a: a[several], scene)
    if not len(scene):
        return {"scenes": 0}
    before = model.infer(_rounded(model.render(scene)))
    z = np.random.default_rng(seed).normal(size=(len(scene), model.config.latent_size))
    edits = {
        "move": scene.move(0, _farthest(scene, model.config.sprite_size)),
        "appearance": scene.with_appearance(0, jnp.asarray(z, jnp.float32)),
    }
    report: dict[str, Any] = {"scenes": len(scene)}
    for name, edited in edits.items():
        after = model.infer(_rounded(model.render(edited)))
        report[name] = _change_of_others(scene, before, after)
    return report


def _rounded(means) -> np.ndarray:
    return (np.asarray(means) >= 0.5).astype(np.float32)


def _farthest(scene: Scene, size: int) -> np.ndarray:
    """[B, 2]: the place inside the canvas that is farthest from all objects but the first."""
    height, width = scene.canvas
    margin = size // 2
    grid = np.stack(
        np.meshgrid(
            np.arange(margin, height - margin), np.arange(margin, width - margin), indexing="ij"
        ),
        axis=-1,
    ).reshape(-1, 2)
    location, present = np.asarray(scene.location), np.asarray(scene.present)
    places = []
    for where, there in zip(location, present, strict=True):
        others = where[1:][there[1:]]
        nearest = np.abs(grid[:, None] - others[None]).max(-1).min(1)
        places.append(grid[nearest.argmax()])
    return np.array(places)


def _change_of_others(scene: Scene, before: Scene, after: Scene) -> dict[str, Any]:
    """Each object but the first is looked for at its place, before and after the edit."""
    moved, changed, lost, total = [], [], 0, 0
    spread = np.asarray(before.appearance)[np.asarray(before.present)].std(0).mean()
    arrays = [
        [np.asarray(a) for a in (s.location, s.appearance, s.present)] for s in (before, after)
    ]
    for b in range(len(scene)):
        for k in range(1, int(scene.count[b])):
            total += 1
            place = np.asarray(scene.location[b, k])
            found = [_nearest(place, *(a[b] for a in part)) for part in arrays]
            if any(f is None for f in found):
                lost += 1
                continue
            (where_before, z_before), (where_after, z_after) = found
            moved.append(np.linalg.norm(where_after - where_before))
            changed.append(np.sqrt(np.mean((z_after - z_before) ** 2)) / max(spread, 1e-9))
    return {
        "objects": total,
        "lost": lost / max(total, 1),
        "location_change_pixels": float(np.mean(moved)) if moved else None,
        "location_unchanged": float(np.mean(np.array(moved) == 0)) if moved else None,
        "appearance_change_in_spreads": float(np.mean(changed)) if changed else None,
    }


def _nearest(place, location, appearance, present, reach: float = 4.0):
    """The object nearest to a place, if there is one within reach."""
    if not present.any():
        return None
    distance = np.linalg.norm(location[present] - place, axis=-1)
    k = distance.argmin()
    return (location[present][k], appearance[present][k]) if distance[k] <= reach else None
