"""From images to objects: detect, select, describe.

    detect      the location network, once for each image: the peaks of its log-odds
    select      which peaks are objects
    describe    the appearance network, once for each object: z_app from the window around it

If the model has a `resolve_radius`, `duplicates.drop` then drops second detections of an object.

Everything that uses a trained model takes this path: arrays, folders, images of different sizes,
large images, evaluation and the playground. Training has compiled, differentiable forms of the same
steps in `inference`.

An image is one tile or, if it is large, several (see `tiles`). Tiles are padded to a few sizes, so
that few programs are compiled. Neither tiling nor padding changes the results.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from lavae_jax import counting, gaussian, inference, networks, placement, tiles
from lavae_jax.model import LAVAE
from lavae_jax.settings import LavaeSettings

# run(function, *inputs, batch_size=...) computes function(lavae, *inputs) in batches.
Run = Callable[..., np.ndarray]
# [H, W, C] each, as the model sees them; or images of one size, [B, H, W, C].
Images = Sequence[np.ndarray] | np.ndarray

USUAL_PIXELS = 64 * 64
PIXELS_AT_ONCE = 1 << 23  # the largest number of pixels of tiles that are stacked on the host
OBJECTS_AT_ONCE = 512
FEW_OBJECTS = 64  # smaller batches are padded to this, so that few programs are compiled


class Detections(NamedTuple):
    """The objects detected in one image, the most probable first unless they are sorted by depth.

    Attributes:
        canvas: height and width, H and W.
        location: row and column of each object, [n, 2].
        log_odds: the log-odds of each object, [n].
        num_detected: how many objects were detected, including those that `select` left out, but
            not dropped duplicates.
        log_odds_map: the log-odds of an object at each pixel, [H, W]; None if not kept.
    """

    canvas: tuple[int, int]
    location: np.ndarray
    log_odds: np.ndarray
    num_detected: int
    log_odds_map: np.ndarray | None = None

    @property
    def score(self) -> np.ndarray:
        """[n]: the probability of each object."""
        return scipy.special.expit(self.log_odds)


# --- detect ------------------------------------------------------------------


def detect(
    run: Run, settings: LavaeSettings, images: Images, batch_size: int, keep_maps: bool = False
) -> list[Detections]:
    """Finds the objects of images of any size, without a limit on their number.

    Args:
        run: computes functions of the model; see `Run`.
        settings: the model's settings.
        images: as the model sees them, [H, W, C] each.
        batch_size: how many images of 64x64 are processed at once; fewer if they are larger.
        keep_maps: whether the log-odds of all pixels are returned, too.

    Returns:
        The detections of each image.
    """
    location, radius = settings.location, settings.peak_radius
    margin = location.reach + radius
    cut = [
        (i, tile)
        for i, image in enumerate(images)
        for tile in tiles.cut(image.shape[:2], margin, location.space_to_depth)
    ]
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in images]
    maps: list[np.ndarray | None]
    maps = [np.empty(image.shape[:2], np.float32) if keep_maps else None for image in images]
    for group in _of_one_size(cut):
        x = np.stack([tiles.padded(images[i], tile) for i, tile in group])
        size = np.array([tile.size for _, tile in group], np.int32)
        at_once = images_at_once(batch_size, x.shape[1:3])
        log_odds, is_peak = run(_log_odds_and_peaks, x, size, batch_size=at_once)
        for k, (i, tile) in enumerate(group):
            own = log_odds[k][tile.own]
            peaks = np.argwhere(is_peak[k][tile.own])
            corner = [tile.rows.first, tile.columns.first]
            found[i].append((peaks + corner, own[tuple(peaks.T)]))
            if (log_odds_map := maps[i]) is not None:
                log_odds_map[tile.own_in_image] = own
    canvases = [(image.shape[0], image.shape[1]) for image in images]
    return list(map(_in_order, canvases, found, maps))


def images_at_once(batch_size: int, canvas: Sequence[int]) -> int:
    """Computes how many images are processed at once.

    Args:
        batch_size: the number for images of 64x64.
        canvas: height and width, H and W.

    Returns:
        `batch_size`, or fewer for larger images.
    """
    return max(1, min(batch_size, batch_size * USUAL_PIXELS // math.prod(canvas)))


def log_odds(lavae: LAVAE, x: jax.Array, size: jax.Array | None = None) -> jax.Array:
    """Computes the log-odds of an object at each pixel.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        size: rows and columns of each image before padding, [B, 2]; see `LocationNet`.

    Returns:
        Log-odds, [B, H, W].
    """
    return inference.log_odds(lavae.settings, lavae.location(x, size))


def _log_odds_and_peaks(lavae: LAVAE, x: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-odds and peaks of padded images [B, H, W, C] with sizes [B, 2]."""
    settings = lavae.settings
    inside = networks.is_inside(size, x.shape[1:3])
    logits = jnp.where(inside, log_odds(lavae, x, size), -jnp.inf)
    return logits, counting.peaks(logits, settings.log_odds_at_threshold, settings.peak_radius)


def _of_one_size(cut: Iterable[tuple[int, tiles.Tile]]) -> Iterable[list[tuple[int, tiles.Tile]]]:
    """Groups tiles by padded size; each group fits into memory."""
    groups: dict[tuple[int, int], list[tuple[int, tiles.Tile]]] = {}
    for i, tile in cut:
        groups.setdefault(tile.padded_size, []).append((i, tile))
    for canvas, group in groups.items():
        size = max(1, PIXELS_AT_ONCE // math.prod(canvas))
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _in_order(
    canvas: tuple[int, int],
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    log_odds_map: np.ndarray | None,
) -> Detections:
    """Sorts by decreasing log-odds; equal ones in reading order."""
    location = np.concatenate([part[0] for part in parts]).reshape(-1, 2).astype(np.int32)
    odds = np.concatenate([part[1] for part in parts]).astype(np.float32)
    order = np.lexsort((location[:, 1], location[:, 0], -odds))
    return Detections(canvas, location[order], odds[order], len(order), log_odds_map)


# --- select ------------------------------------------------------------------


def select(
    detections: Detections, max_objects: float = math.inf, min_score: float = 0.0
) -> Detections:
    """Selects the most probable objects.

    Args:
        detections: the detections in one image.
        max_objects: the largest number of objects that are kept.
        min_score: the minimum probability of an object.

    Returns:
        The selected detections.

    Raises:
        TypeError: if `max_objects` is not a whole number.
        ValueError: if a limit is out of range.
    """
    check_limits(max_objects, min_score)
    number = int(min(int(np.count_nonzero(detections.score >= min_score)), max_objects))
    return detections._replace(
        location=detections.location[:number], log_odds=detections.log_odds[:number]
    )


def check_limits(max_objects: float, min_score: float) -> None:
    """Checks the limits of a selection.

    Args:
        max_objects: a whole number of at least 1, or infinity.
        min_score: a probability.

    Raises:
        TypeError: if `max_objects` is not a whole number.
        ValueError: if a limit is out of range.
    """
    if max_objects != math.inf:
        whole_number("max_objects", max_objects, 1)
    if not 0 <= min_score <= 1:  # refuses nan, too
        raise ValueError(f"min_score={min_score} must be a probability from 0 to 1")


def whole_number(name: str, value: Any, least: int) -> int:
    """Checks that a value is a whole number.

    Args:
        name: the value's name, for error messages.
        value: the value.
        least: the least number allowed.

    Returns:
        The number.

    Raises:
        TypeError: if the value is not a whole number.
        ValueError: if it is less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a whole number") from None
    if number < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return number


# --- describe ----------------------------------------------------------------


class Appearances(NamedTuple):
    """q(z_app | z_loc, x) of the objects of one image.

    Attributes:
        mean: [n, L].
        kl: KL(q(z_app | z_loc, x) || N(0, I)), [n].
    """

    mean: np.ndarray
    kl: np.ndarray


def describe(
    run: Run, settings: LavaeSettings, images: Images, detected: Sequence[Detections]
) -> list[Appearances]:
    """Infers the appearances of detected objects.

    Args:
        run: computes functions of the model; see `Run`.
        settings: the model's settings.
        images: as the model sees them, [H, W, C] each.
        detected: the detections of each image.

    Returns:
        The appearances of each image's objects.
    """
    radius = settings.appearance.radius
    windows = [
        cut_windows(image, one.location, radius)
        for image, one in zip(images, detected, strict=True)
    ]
    none = np.zeros((0, 2 * radius + 1, 2 * radius + 1, settings.channels), np.float32)
    together = np.concatenate([none, *windows])
    encoded = run(_appearances, together, batch_size=OBJECTS_AT_ONCE, least=FEW_OBJECTS)
    parts = (split(values, [len(part) for part in windows]) for values in encoded)
    return [Appearances(*each) for each in zip(*parts, strict=True)]


def split(values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Splits an array into parts.

    Args:
        values: [n, ...].
        lengths: the lengths of the parts, which add up to n.

    Returns:
        The parts, in order.
    """
    ends = np.cumsum(lengths, dtype=int)
    return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def cut_windows(image: np.ndarray, centres: np.ndarray, radius: int) -> np.ndarray:
    """Cuts windows out of an image.

    Args:
        image: [H, W, C]; it is taken to be black outside.
        centres: row and column of each window's centre, [n, 2].
        radius: how far a window extends in each direction, in pixels.

    Returns:
        Windows, [n, 2 radius + 1, 2 radius + 1, C] float32.
    """
    side = 2 * radius + 1
    padded = np.pad(image, ((radius, radius), (radius, radius), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(0, 1))
    return np.moveaxis(windows[centres[:, 0], centres[:, 1]], 1, -1).astype(np.float32)


def _appearances(lavae: LAVAE, windows: jax.Array) -> tuple[jax.Array, jax.Array]:
    q_app = gaussian.from_features(lavae.appearance(windows)[:, 0, 0])
    return q_app.mean, gaussian.kl_to_standard(q_app).sum(-1)


def depth_order(sprites: np.ndarray, location: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Orders objects from back to front, so that a composition by "over" explains an image best.

    Of two sprites that cover the same pixels, the one that is closer to the image there is in
    front. Objects that do not overlap with others keep their order.

    Args:
        sprites: [n, h, w, C].
        location: row and column of each object, [n, 2].
        image: [H, W, C].

    Returns:
        Indices of the objects, back to front, [n].
    """
    number, canvas = len(location), image.shape[:2]
    gain = np.zeros((number, number), np.float32)  # of having i in front of j
    distance = np.abs(location[:, None] - location[None])
    near = np.triu((distance < sprites.shape[1:3]).all(-1), 1)
    for i, j in np.argwhere(near):
        layers = np.zeros((2, *image.shape), np.float32)
        for layer, k in zip(layers, (i, j), strict=True):
            on_canvas, on_sprite = placement.overlap(location[k], sprites.shape[1:3], canvas)
            layer[on_canvas] = sprites[k][on_sprite]
        shared = layers.max(-1).prod(0)
        error = (np.square(layers - image).sum(-1) * shared).sum((1, 2))
        gain[i, j], gain[j, i] = error[1] - error[0], error[0] - error[1]
    order, left = [], list(range(number))
    while left:
        hindmost = min(left, key=lambda k: gain[k, left].max())
        order.append(hindmost)
        left.remove(hindmost)
    return np.array(order, np.int32)


def decode(run: Run, z_app: np.ndarray) -> np.ndarray:
    """Decodes appearances into sprites.

    Args:
        run: computes functions of the model; see `Run`.
        z_app: appearances, [n, L].

    Returns:
        Sprites, [n, h, w, C].
    """
    return run(_sprites, z_app, batch_size=OBJECTS_AT_ONCE, least=FEW_OBJECTS)


def _sprites(lavae: LAVAE, z_app: jax.Array) -> jax.Array:
    return lavae.decoder(z_app)
