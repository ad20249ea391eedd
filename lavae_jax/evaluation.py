"""The numbers that a trained model is judged by: numpy on what the model gave."""

import time
from typing import Any

import numpy as np
import scipy.optimize
import sklearn.metrics

from lavae_jax import likelihoods, objects, placement
from lavae_jax.api import Baseline, Model
from lavae_jax.input_pipeline import ProcessShard, Source
from lavae_jax.objective import Bound
from lavae_jax.scene import Scene

EDITED = 500  # scenes, of which those with several objects show what an edit changes

# --- a split -----------------------------------------------------------------


def evaluate(
    model: Model | Baseline,
    source: Source,
    num_samples: int,
    entropy: float | None,
    *,
    shard: ProcessShard | None = None,
) -> dict[str, Any]:
    """All figures of a model on scenes with ground truth: `image`, `count` and `mask`.

    Each process measures its share of the scenes, and has the figures of all of them.
    `entropy` is that of the data, which no model can beat, if it is known.
    """
    shard = shard or ProcessShard.of_this_process()
    size = len(source)
    indices = shard.take(np.arange(size))
    batch = source.read(indices)
    images = batch["image"]
    progress = "-log p(x)" if shard.process_index == 0 else None
    bound = model.bound(images, num_samples, indices=indices, progress=progress)
    scores = bound_scores(shard.gather(bound, size), entropy)
    if isinstance(model, Model):
        slots = model.settings.max_objects
        model.infer(images, max_objects=slots)  # compiles
        start = time.perf_counter()
        scene = model.infer(images, max_objects=slots)
        scores["images_per_second"] = size / (time.perf_counter() - start)
        per_image = object_scores(scene, np.asarray(model.sprites(scene)), batch["mask"])
        scene, count, per_image = shard.gather((scene, batch["count"], per_image), size)
        scores |= count_scores(np.asarray(scene.count), count)
        scores |= centre_scores(per_image)
        scores["disentanglement"] = disentanglement(model, scene[:EDITED], shard=shard)
    return scores


def describe(name: str, scores: dict[str, Any]) -> str:
    """A split's figures, for people."""
    lines = [
        f"{name}: {scores['images']:,} images",
        f"  -log p(x) <= {scores['neg_bound']:.2f} ± {scores['standard_error']:.2f} "
        f"(median {scores['median']:.2f}); "
        + ", ".join(f"{k} {v:.2f}" for k, v in scores["terms"].items()),
    ]
    if scores["entropy"] is not None:
        lines.append(
            f"  entropy of the data {scores['entropy']:.2f}, gap {scores['gap_to_entropy']:.2f}"
        )
    if "count_accuracy" in scores:
        lines.append(
            f"  count {scores['count_accuracy']:.2%} right, {scores['overcounted']:.2%} over, "
            f"{scores['undercounted']:.2%} under; {scores['images_per_second']:.0f} images/s"
        )
    if "centre_distance_median" in scores:
        lines.append(
            f"  centres off by {scores['centre_distance_median']:.2f} pixels (median), "
            f"{scores['centre_distance_95']:.2f} (95 %); "
            f"{scores['centres_within_2_pixels']:.2%} within 2"
        )
    if "foreground_ari" in scores:
        lines.append(f"  foreground ARI {scores['foreground_ari']:.4f}")
    for edit in ("move", "appearance"):
        if edit in scores.get("disentanglement", {}):
            change = scores["disentanglement"][edit]
            others = f"{change['objects']} others {change['lost']:.1%} lost"
            text = f"  {edit} of one object: of the {others}"
            if change["location_change_pixels"] is not None:
                text += (
                    f", moved by {change['location_change_pixels']:.3f} pixels, appearance "
                    f"changed by {change['appearance_change_in_spreads']:.3f} spreads"
                )
            lines.append(text)
    return "\n".join(lines)


# --- the bound ---------------------------------------------------------------


def bound_scores(bound: Bound, entropy: float | None) -> dict[str, Any]:
    """The bound on -log p(x), its error and its parts."""
    neg = -bound.log_p
    return {
        "images": len(neg),
        "neg_bound": float(neg.mean()),
        "standard_error": float(neg.std() / np.sqrt(len(neg))),
        "median": float(np.median(neg)),
        "terms": {name: float(v.mean()) for name, v in sorted(bound.terms._asdict().items())},
        "entropy": entropy,
        "gap_to_entropy": None if entropy is None else float(neg.mean() - entropy),
    }


# --- counting ----------------------------------------------------------------


def count_scores(inferred: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Accuracy, over- and under-counting, and the confusion matrix (rows: true counts)."""
    size = int(max(inferred.max(), true.max())) + 1
    confusion = sklearn.metrics.confusion_matrix(true, inferred, labels=np.arange(size))
    return {
        "count_accuracy": float((inferred == true).mean()),
        "overcounted": float((inferred > true).mean()),
        "undercounted": float((inferred < true).mean()),
        "count_confusion": confusion.tolist(),
    }


# --- locations and masks -----------------------------------------------------


def true_centres(mask: np.ndarray) -> np.ndarray:
    """The centre of mass of each object's pixels in a mask [H, W]: [n, 2]."""
    return inferred_centres(mask == np.arange(1, mask.max() + 1)[:, None, None])


def placed_sprites(
    location: np.ndarray, sprites: np.ndarray, canvas: tuple[int, int]
) -> np.ndarray:
    """Each object alone on the canvas, the brightest channel: [n, H, W]."""
    alone = zip(sprites.max(-1)[:, None, ..., None], location[:, None], strict=True)
    placed = [placement.compose(sprite, at, canvas)[..., 0] for sprite, at in alone]
    return np.array(placed, np.float32).reshape(-1, *canvas)


def inferred_centres(placed: np.ndarray) -> np.ndarray:
    """The centre of mass of each placed sprite [n, H, W]: [n, 2]."""
    return np.array([objects.centre_of_mass(one) for one in placed]).reshape(-1, 2)


def match(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points [n, 2] and [m, 2] with the least sum of distances."""
    if not len(one) or not len(other):
        return np.empty(0, int), np.empty(0, int)
    distance = np.linalg.norm(one[:, None] - other[None], axis=-1)
    return scipy.optimize.linear_sum_assignment(distance)


def object_scores(scene: Scene, sprites: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Distances of matched centres [B, M], in pixels, and each scene's foreground ARI [B].

    They are nan where there is nothing to measure. The centre of an object is the centre of
    mass of its pixels, of the true ones and of its sprite on the canvas. So it does not
    count which pixel of an object the model calls its location, as long as the sprite makes
    up for it.
    """
    count, location = np.asarray(scene.count), np.asarray(scene.location)
    distance, ari = np.full(location.shape[:2], np.nan), np.full(len(mask), np.nan)
    for b, true_mask in enumerate(mask):
        placed = placed_sprites(location[b, : count[b]], sprites[b, : count[b]], true_mask.shape)
        ours, truth = inferred_centres(placed), true_centres(true_mask)
        i, j = match(ours, truth)
        distance[b, : len(i)] = np.linalg.norm(ours[i] - truth[j], axis=-1)
        foreground = true_mask > 0
        if foreground.any():
            bright = placed[:, foreground]
            owner = bright.argmax(0) + 1 if len(bright) else np.zeros(foreground.sum(), int)
            ari[b] = sklearn.metrics.adjusted_rand_score(true_mask[foreground], owner)
    return {"distance": distance, "foreground_ari": ari}


def centre_scores(per_image: dict[str, np.ndarray]) -> dict[str, float]:
    """Summaries of `object_scores`; those of objects are absent if there are none."""
    distance, ari = (
        per_image[name][~np.isnan(per_image[name])] for name in ("distance", "foreground_ari")
    )
    scores = {}
    if len(distance):
        scores["centre_distance_median"] = float(np.median(distance))
        scores["centre_distance_95"] = float(np.percentile(distance, 95))
        scores["centres_within_2_pixels"] = float((distance <= 2).mean())
    if len(ari):
        scores["foreground_ari"] = float(ari.mean())
    return scores


# --- disentanglement ---------------------------------------------------------


def disentanglement(
    model: Model, scene: Scene, seed: int = 0, *, shard: ProcessShard | None = None
) -> dict[str, Any]:
    """What happens to the other objects when one is changed in latent space.

    Of each scene with two objects or more, the first is moved as far as possible from
    the others, or given the appearance of a prior sample. The scene is rendered, its
    pixels rounded, and inferred again; the others should be where and what they were.
    """
    shard = shard or ProcessShard.of_this_process()
    scene = scene[np.asarray(scene.count) >= 2]
    if not len(scene):
        return {"scenes": 0}

    def seen_again(scene: Scene) -> Scene:
        """Rendered and inferred, by each process its part."""
        part = scene[shard.take(np.arange(len(scene)))]
        again = model.infer(_rounded(model, part), max_objects=model.settings.max_objects)
        return shard.gather(again, len(scene))

    before = seen_again(scene)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(len(scene), model.settings.latent_size))
    z = model.sample_appearances(noise, rng.uniform(size=len(scene)))
    edits = {
        "move": scene.move(0, _farthest_location(scene, model.settings.sprite_size)),
        "appearance": scene.with_appearance(0, z),
    }
    report: dict[str, Any] = {"scenes": len(scene)}
    for name, edited in edits.items():
        report[name] = _change_of_others(scene, before, seen_again(edited))
    return report


def _rounded(model: Model, scene: Scene) -> np.ndarray:
    """The binary image that a scene most likely is."""
    means = np.asarray(model.render(scene))
    return likelihoods.of(model.settings).is_foreground(means).astype(np.float32)


def _farthest_location(scene: Scene, size: int) -> np.ndarray:
    """[B, 2]: the location inside the canvas that is farthest from all objects but the first."""
    height, width = scene.canvas
    margin = size // 2
    grid = np.stack(
        np.meshgrid(
            np.arange(margin, height - margin), np.arange(margin, width - margin), indexing="ij"
        ),
        axis=-1,
    ).reshape(-1, 2)
    location, present = np.asarray(scene.location), np.asarray(scene.present)
    chosen = []
    for where, there in zip(location, present, strict=True):
        others = where[1:][there[1:]]
        nearest = np.abs(grid[:, None] - others[None]).max(-1).min(1)
        chosen.append(grid[nearest.argmax()])
    return np.array(chosen)


def _change_of_others(scene: Scene, before: Scene, after: Scene) -> dict[str, Any]:
    """Each object but the first is looked for at its location, before and after the edit."""
    moved, changed, lost, total = [], [], 0, 0
    spread = np.asarray(before.appearance)[np.asarray(before.present)].std(0).mean()
    arrays = [
        [np.asarray(a) for a in (s.location, s.appearance, s.present)] for s in (before, after)
    ]
    for b in range(len(scene)):
        for k in range(1, int(scene.count[b])):
            total += 1
            target = np.asarray(scene.location[b, k])
            found = [_nearest(target, *(a[b] for a in part)) for part in arrays]
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


def _nearest(target, location, appearance, present, reach: float = 4.0):
    """The object nearest to the location `target`, if one is within reach."""
    if not present.any():
        return None
    distance = np.linalg.norm(location[present] - target, axis=-1)
    k = distance.argmin()
    return (location[present][k], appearance[present][k]) if distance[k] <= reach else None
