"""Metrics of trained models, computed with numpy from what the models return."""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import sklearn.metrics

from lavae_jax import classical, likelihoods, objects, placement
from lavae_jax.api import Baseline, Model
from lavae_jax.input_pipeline import ProcessShard, Source
from lavae_jax.objective import Bound
from lavae_jax.scene import Scene

EDITED = 500  # scenes on which disentanglement is measured
TOLERANCE = 4.0  # pixels: the largest distance at which an inferred centre matches a true one
MOSTLY_HIDDEN = 0.75  # the share of hidden pixels above which an object need not be found
THRESHOLDED = 1_000  # grey images from which one threshold is computed

FEATURES = ("image", "count", "mask")  # of all scenes
OVERLAP = ("centres", "hidden")  # also of scenes in which objects may overlap

# --- a split -----------------------------------------------------------------


def evaluate(
    model: Model | Baseline,
    source: Source,
    num_samples: int,
    entropy: float | None,
    *,
    shard: ProcessShard | None = None,
) -> dict[str, Any]:
    """Computes all metrics of a model on scenes with ground truth.

    Each process measures its share of the scenes and returns the metrics of all of them.

    Args:
        model: a trained model.
        source: scenes with `FEATURES` and, if objects overlap, `OVERLAP`.
        num_samples: importance samples.
        entropy: the data entropy, a lower bound on any model's -log p(x); None if it is not known.
        shard: the share of this process; by default, according to JAX.

    Returns:
        The metrics by name, in JSON's types.
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
        sprites, centres = np.asarray(model.sprites(scene)), batch.get("centres")
        per_image = object_scores(scene, sprites, batch["mask"], centres)
        truth = batch["count"], batch.get("hidden")
        scene, truth, per_image = shard.gather((scene, truth, per_image), size)
        scores |= _scores_of_objects(np.asarray(scene.count), truth[0], truth[1], per_image)
        claimed, present = np.asarray(scene.score), np.asarray(scene.present)
        scores["calibration"] = calibration(claimed[present], per_image["is_true"][present])
        scores["disentanglement"] = disentanglement(model, scene[:EDITED], shard=shard)
    return scores


def evaluate_classical(method: classical.Method, source: Source) -> dict[str, Any]:
    """Computes the metrics of a classical method: all but those of a likelihood and of appearances.

    Args:
        method: one of `classical.METHODS`.
        source: scenes; see `evaluate`. Grey scenes are binarised by one threshold for all, which
            Otsu's method chooses.

    Returns:
        The metrics by name, in JSON's types.
    """
    batch = source.read(range(len(source)))
    images = batch["image"] > classical.threshold(batch["image"][:THRESHOLDED])
    start = time.perf_counter()
    labels = [method(image) for image in images]
    seconds = time.perf_counter() - start
    found = [Found(true_centres(one), one) for one in labels]
    per_image = scores_of_found(found, batch["mask"], batch.get("centres"))
    count = np.array([len(one.centres) for one in found])
    return {
        "images": len(images),
        "images_per_second": len(images) / seconds,
        **_scores_of_objects(count, batch["count"], batch.get("hidden"), per_image),
    }


def _scores_of_objects(count, true_count, hidden, per_image) -> dict[str, Any]:
    """Metrics of inferred counts [B] and of `scores_of_found`."""
    return {
        **count_scores(count, true_count),
        **({} if hidden is None else visible_scores(count, true_count, hidden)),
        **centre_scores(per_image),
        **location_scores(per_image["is_true"], count, true_count),
    }


def describe(name: str, scores: dict[str, Any]) -> str:
    """Formats the metrics of a split for the console.

    Args:
        name: the name of the split.
        scores: its metrics; see `evaluate`.

    Returns:
        A few lines of text.
    """
    lines = [f"{name}: {scores['images']:,} images"]
    if "neg_bound" in scores:
        lines.append(
            f"  -log p(x) <= {scores['neg_bound']:.2f} ± {scores['standard_error']:.2f} "
            f"(median {scores['median']:.2f}); "
            + ", ".join(f"{k} {v:.2f}" for k, v in scores["terms"].items())
        )
    if scores.get("entropy") is not None:
        lines.append(
            f"  entropy of the data {scores['entropy']:.2f}, gap {scores['gap_to_entropy']:.2f}"
        )
    if "count_accuracy" in scores:
        lines.append(
            f"  count accuracy {scores['count_accuracy']:.2%}, overcounted "
            f"{scores['overcounted']:.2%}, undercounted {scores['undercounted']:.2%}, "
            f"mean absolute error {scores['count_mean_absolute_error']:.3f}; "
            f"{scores['images_per_second']:.0f} images/s"
        )
    if scores.get("mostly_hidden"):
        lines.append(
            f"  count accuracy {scores['count_accuracy_visible']:.2%} without the "
            f"{scores['mostly_hidden']:.2%} of scenes in which more than {MOSTLY_HIDDEN:.0%} of an "
            "object is hidden"
        )
    if "centre_distance_median" in scores:
        lines.append(
            f"  centre error {scores['centre_distance_median']:.2f} pixels (median), "
            f"{scores['centre_distance_95']:.2f} (95th percentile); "
            f"{scores['centres_within_2_pixels']:.2%} within 2 pixels"
        )
    if "recall" in scores or "precision" in scores:
        rates = [f"{k} {scores[k]:.2%}" for k in ("recall", "precision") if k in scores]
        lines.append(f"  within {TOLERANCE:g} pixels: {', '.join(rates)}")
    if scores.get("calibration", {}).get("expected_calibration_error") is not None:
        error = scores["calibration"]["expected_calibration_error"]
        lines.append(f"  expected calibration error of objects' probabilities {error:.4f}")
    if "foreground_ari" in scores:
        lines.append(f"  foreground ARI {scores['foreground_ari']:.4f}")
    for edit, title in (("move", "location"), ("appearance", "appearance")):
        if edit in scores.get("disentanglement", {}):
            change = scores["disentanglement"][edit]
            text = (
                f"  after a change of one object's {title}: {change['lost']:.1%} of the "
                f"{change['objects']:,} other objects lost"
            )
            if change["location_change_pixels"] is not None:
                text += (
                    f"; the rest moved by {change['location_change_pixels']:.3f} pixels, and their "
                    f"appearances changed by {change['appearance_change_in_spreads']:.3f} standard "
                    "deviations (means)"
                )
            lines.append(text)
    return "\n".join(lines)


# --- the bound ---------------------------------------------------------------


def bound_scores(bound: Bound, entropy: float | None) -> dict[str, Any]:
    """Summarises the bound on -log p(x).

    Args:
        bound: the bounds of all images.
        entropy: the data entropy; None if it is not known.

    Returns:
        The mean of the bound, its standard error and median, the means of the ELBO's terms, and the
        gap to the entropy.
    """
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
    """Computes the metrics of counting.

    Args:
        inferred: counts [B].
        true: counts [B].

    Returns:
        Accuracy, errors, and the confusion matrix, whose rows are true counts.
    """
    size = int(max(inferred.max(), true.max())) + 1
    confusion = sklearn.metrics.confusion_matrix(true, inferred, labels=np.arange(size))
    return {
        "count_accuracy": float((inferred == true).mean()),
        "overcounted": float((inferred > true).mean()),
        "undercounted": float((inferred < true).mean()),
        "count_mean_absolute_error": float(np.abs(inferred.astype(int) - true).mean()),
        "count_confusion": confusion.tolist(),
    }


def visible_scores(inferred: np.ndarray, true: np.ndarray, hidden: np.ndarray) -> dict[str, Any]:
    """Computes the count accuracy without the scenes in which most of an object is hidden.

    Args:
        inferred: counts [B].
        true: counts [B].
        hidden: the share of each object's pixels that others hide, [B, S].

    Returns:
        The share of the scenes that are left out, and the accuracy on the others if there are any.
    """
    is_left_out = (hidden > MOSTLY_HIDDEN).any(1)
    scores = {"mostly_hidden": float(is_left_out.mean())}
    if not is_left_out.all():
        is_right = (inferred == true)[~is_left_out]
        scores["count_accuracy_visible"] = float(is_right.mean())
    return scores


# --- locations and masks -----------------------------------------------------


class Found(NamedTuple):
    """The objects that were found in one image.

    Attributes:
        centres: [n, 2], row and column.
        labels: [H, W]: the object 1..n that a pixel belongs to, or 0.
    """

    centres: np.ndarray
    labels: np.ndarray


def true_centres(mask: np.ndarray) -> np.ndarray:
    """Computes the centre of mass of each object's pixels.

    Args:
        mask: [H, W], a label image with objects 1..n.

    Returns:
        [n, 2], row and column.
    """
    return inferred_centres(mask == np.arange(1, mask.max() + 1)[:, None, None])


def placed_sprites(
    location: np.ndarray, sprites: np.ndarray, canvas: tuple[int, int]
) -> np.ndarray:
    """Places each sprite on a canvas of its own.

    Args:
        location: [n, 2], row and column of each object.
        sprites: [n, h, w, C].
        canvas: height and width.

    Returns:
        [n, H, W], the largest of the channels.
    """
    alone = zip(sprites.max(-1)[:, None, ..., None], location[:, None], strict=True)
    placed = [placement.compose(sprite, at, canvas)[..., 0] for sprite, at in alone]
    return np.array(placed, np.float32).reshape(-1, *canvas)


def inferred_centres(placed: np.ndarray) -> np.ndarray:
    """Computes the centre of mass of each placed sprite.

    Args:
        placed: [n, H, W].

    Returns:
        [n, 2], row and column.
    """
    return np.array([objects.centre_of_mass(one) for one in placed]).reshape(-1, 2)


def match(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matches points so that the sum of distances is minimal.

    Args:
        one: points [n, 2].
        other: points [m, 2].

    Returns:
        The indices of matched points in `one` and in `other`, [min(n, m)] each.
    """
    if not len(one) or not len(other):
        return np.empty(0, int), np.empty(0, int)
    distance = np.linalg.norm(one[:, None] - other[None], axis=-1)
    return scipy.optimize.linear_sum_assignment(distance)


def match_within(
    one: np.ndarray, other: np.ndarray, tolerance: float = TOLERANCE
) -> tuple[np.ndarray, np.ndarray]:
    """Matches as many points as possible that are at most `tolerance` apart.

    Args:
        one: points [n, 2].
        other: points [m, 2].
        tolerance: the largest distance of a match.

    Returns:
        The indices of matched points in `one` and in `other`.
    """
    if not len(one) or not len(other):
        return np.empty(0, int), np.empty(0, int)
    distance = np.linalg.norm(one[:, None] - other[None], axis=-1)
    i, j = scipy.optimize.linear_sum_assignment(distance > tolerance)
    is_near = distance[i, j] <= tolerance
    return i[is_near], j[is_near]


def mask_precision(found: np.ndarray, true: np.ndarray, overlap: float = 0.5) -> float:
    """Computes the share of hits among all objects that are found or true, TP / (TP + FP + FN).

    An object is a hit if the intersection of its mask with a true mask is at least `overlap` of
    their union. In cell segmentation, the mean over images is called average precision.

    Args:
        found: [H, W], a label image: 0 for the background, another number for each object.
        true: [H, W], the true label image.
        overlap: at least one half, so that no mask can be a hit for two others.

    Returns:
        From 0 to 1; 1 if there are no objects in either image.
    """
    common = np.zeros((int(found.max()) + 1, int(true.max()) + 1))
    np.add.at(common, (found.ravel(), true.ravel()), 1)
    areas, true_areas = common.sum(1), common.sum(0)
    union = areas[:, None] + true_areas - common
    is_hit = (common >= overlap * union)[1:, 1:] & (common[1:, 1:] > 0)
    # Two halves of one mask both overlap with it by one half, but make one hit.
    hits = min(is_hit.any(1).sum(), is_hit.any(0).sum())
    total = np.count_nonzero(areas[1:]) + np.count_nonzero(true_areas[1:]) - hits
    return float(hits / total) if total else 1.0


def object_scores(
    scene: Scene, sprites: np.ndarray, mask: np.ndarray, centres: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Computes `scores_of_found` for the objects of scenes.

    The centre of an object is the centre of mass of its sprite on the canvas. It therefore does not
    matter which pixel of an object the model reports as its location, if the sprite is shifted
    accordingly.

    Args:
        scene: B scenes with M slots.
        sprites: the sprites of its objects, [B, M, h, w, C].
        mask: the true objects' visible pixels, [B, H, W].
        centres: the true centres [B, S, 2], -1 where absent; by default, those of the visible
            pixels, which differ if a part of an object is hidden.

    Returns:
        See `scores_of_found`.
    """
    count, location = np.asarray(scene.count), np.asarray(scene.location)
    found = (
        _found(placed_sprites(location[b, :n], sprites[b, :n], mask.shape[1:]))
        for b, n in enumerate(count)
    )
    return scores_of_found(found, mask, centres, location.shape[1])


def _found(placed: np.ndarray) -> Found:
    """The objects of placed sprites [n, H, W]; a pixel belongs to the brightest of them."""
    labels = placed.argmax(0) + 1 if len(placed) else np.zeros(placed.shape[1:], int)
    return Found(inferred_centres(placed), labels)


def scores_of_found(
    found: Iterable[Found],
    mask: np.ndarray,
    centres: np.ndarray | None = None,
    slots: int | None = None,
) -> dict[str, np.ndarray]:
    """Compares the objects that were found in B images with the true ones.

    Args:
        found: the objects of each image, at most M.
        mask: the true objects' visible pixels, [B, H, W].
        centres: the true centres [B, S, 2], -1 where absent; by default, those of the mask.
        slots: M; by default, the largest number of objects found in an image.

    Returns:
        `distance` [B, M] of matched centres in pixels, and `foreground_ari` [B], nan where there is
        nothing to measure; `is_true` [B, M], whether an object is matched to a true one within
        `TOLERANCE`, in a matching with as many pairs as possible.
    """
    distances, is_true, ari = [], [], np.full(len(mask), np.nan)
    for b, one in enumerate(found):
        truth = true_centres(mask[b]) if centres is None else centres[b][centres[b, :, 0] >= 0]
        i, j = match(one.centres, truth)
        distances.append(np.linalg.norm(one.centres[i] - truth[j], axis=-1))
        is_true.append(np.isin(np.arange(len(one.centres)), match_within(one.centres, truth)[0]))
        foreground = mask[b] > 0
        if foreground.any():
            labels = one.labels[foreground]
            ari[b] = sklearn.metrics.adjusted_rand_score(mask[b][foreground], labels)
    slots = max(map(len, is_true), default=0) if slots is None else slots
    return {
        "distance": _padded(distances, slots, np.nan),
        "foreground_ari": ari,
        "is_true": _padded(is_true, slots, False),
    }


def _padded(rows: list[np.ndarray], length: int, value: Any) -> np.ndarray:
    padded = np.full((len(rows), length), value)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def centre_scores(per_image: dict[str, np.ndarray]) -> dict[str, float]:
    """Summarises distances of centres and foreground ARI.

    Args:
        per_image: see `scores_of_found`.

    Returns:
        The metrics by name, without those for which there was nothing to measure.
    """
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


def location_scores(
    is_true: np.ndarray, count: np.ndarray, true_count: np.ndarray
) -> dict[str, float]:
    """Computes recall and precision of locations.

    Args:
        is_true: whether an object that was found matches a true one, [B, M].
        count: numbers of objects that were found, [B].
        true_count: numbers of true objects, [B].

    Returns:
        `recall` if there are true objects, and `precision` if any were found.
    """
    totals = {"recall": true_count.sum(), "precision": count.sum()}
    return {name: float(is_true.sum() / total) for name, total in totals.items() if total}


# --- probabilities of objects ------------------------------------------------


def calibration(claimed: np.ndarray, is_true: np.ndarray, bins: int = 10) -> dict[str, Any]:
    """Compares the claimed probabilities of objects with the share of them that are true.

    Args:
        claimed: probabilities [n].
        is_true: whether each matches a true object, [n].
        bins: how many bins of equal width from 0 to 1; a bin includes its upper edge.

    Returns:
        For each bin, the number of `objects`, their mean `claimed` probability, and the share that
        is `true`; the last two are None where there are no objects. Also the
        `expected_calibration_error`: the absolute difference between the two, averaged over bins
        weighted by their numbers of objects.
    """
    claimed, is_true = np.asarray(claimed, np.float64), np.asarray(is_true, np.float64)
    index = np.clip(np.ceil(claimed * bins).astype(int) - 1, 0, bins - 1)
    number = np.bincount(index, minlength=bins)
    sums = [np.bincount(index, values, minlength=bins) for values in (claimed, is_true)]
    error = np.abs(sums[0] - sums[1]).sum() / max(len(claimed), 1)
    means = [
        [float(total / n) if n else None for total, n in zip(one, number, strict=True)]
        for one in sums
    ]
    return {
        "expected_calibration_error": float(error) if len(claimed) else None,
        "objects": number.tolist(),
        "claimed": means[0],
        "true": means[1],
    }


# --- disentanglement ---------------------------------------------------------


def disentanglement(
    model: Model, scene: Scene, seed: int = 0, *, shard: ProcessShard | None = None
) -> dict[str, Any]:
    """Measures what happens to the other objects when one is changed in latent space.

    In each scene with two objects or more, the first is moved as far as possible from the others,
    or given an appearance sampled from the prior. The scene is rendered, its pixels are rounded,
    and it is inferred again; the other objects should not change.

    Args:
        model: a trained LAVAE.
        scene: scenes that it inferred.
        seed: seed of the sampled appearances.
        shard: the share of this process; by default, according to JAX.

    Returns:
        The number of `scenes` with two objects or more, and for each edit the share of the other
        objects that are lost and the mean changes of the rest.
    """
    shard = shard or ProcessShard.of_this_process()
    scene = scene[np.asarray(scene.count) >= 2]
    if not len(scene):
        return {"scenes": 0}

    def seen_again(scene: Scene) -> Scene:
        """Renders scenes and infers them again; each process does its share."""
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
    """Renders scenes as binary images: 1 where a pixel is foreground."""
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
    """Compares what is inferred at the location of each object but the first, before and after."""
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
