"""Analyses the objects of many images; `lavae infer` writes its records.

    records = lavae_jax.analyse(model, "folder/")

Images are preprocessed and decomposed (see `decomposition`), and their objects are decoded and
measured.
"""

import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lavae_jax import decomposition, likelihoods, masks, objects, placement, tiles
from lavae_jax.api import Model, as_batch
from lavae_jax.arrays import Array
from lavae_jax.decomposition import Detections
from lavae_jax.images import Images, open_images
from lavae_jax.objects import Record
from lavae_jax.preprocessing import ImageError, is_binary

IMAGES_AT_ONCE, PIXELS_AT_ONCE = 64, 1 << 22
SIZES_WITH_BOUND = 8  # bounds are computed for at most this many image sizes; each is compiled

# Called as draw(number, raw, record) for each image.
Draw = Callable[[int, np.ndarray, Record], None]


def analyse(
    model: Model,
    images: str | pathlib.Path | Images | Sequence[np.ndarray] | Array,
    *,
    max_objects: float = math.inf,
    min_score: float = 0.0,
    num_samples: int = 0,
    masks: bool = False,
    appearances: bool = False,
) -> list[Record]:
    """Counts, locates and measures the objects of images.

    Args:
        model: a trained LAVAE; its preprocessing is applied.
        images: a path that `images.open_images` accepts, or raw images of any sizes.
        max_objects: the largest number of objects in an image.
        min_score: the minimum probability of an object; less probable ones are left out.
        num_samples: importance samples of the bound on log p(x) of binary images; 0 for no bound.
        masks: whether each object has a `mask`, as run lengths, and its `area` in pixels. No pixel
            belongs to two objects. `objects.label_image` combines the masks of an image.
        appearances: whether each object has its `appearance` [L], by which `groups.find` groups
            objects.

    Returns:
        A record for each image; see `objects.record`. Images that cannot be read have an error.

    Raises:
        TypeError: the model is not a LAVAE.
        ValueError: `max_objects` or `min_score` is out of range.
    """
    if not isinstance(model, Model):
        raise TypeError(f"expected a trained LAVAE, not {type(model).__name__}")
    decomposition.check_limits(max_objects, min_score)
    source: Any = images
    if isinstance(images, (str, pathlib.Path)):
        source = open_images(str(images))
    elif isinstance(images, (np.ndarray, jax.Array)):
        source = as_batch(np.asarray(images), model.settings.channels)
    wanted = Wanted(max_objects, min_score, num_samples, masks, appearances)
    return [record for chunk in analyse_in_chunks(model, source, wanted) for record in chunk]


class Wanted(NamedTuple):
    """The options of `analyse`."""

    max_objects: float = math.inf
    min_score: float = 0.0
    num_samples: int = 0
    masks: bool = False
    appearances: bool = False


def analyse_in_chunks(
    model: Model,
    images: Images | Sequence[np.ndarray],
    wanted: Wanted,
    done: Sequence[Record] = (),
    draw: Draw | None = None,
) -> Iterator[list[Record]]:
    """Analyses images, a few at a time.

    Args:
        model: a trained LAVAE.
        images: raw images of any sizes.
        wanted: what the records contain.
        done: records of the first images, which are skipped.
        draw: called for each image.

    Yields:
        The records of the next images.
    """
    done = list(done)
    for chunk in _read(model, images, range(len(done), len(images))):
        records = _analyse_chunk(model, chunk, wanted, done, draw)
        done += records
        yield records


class _Image(NamedTuple):
    """An image that is being analysed; it has an error if it could not be read."""

    number: int
    name: str
    raw: Any = None
    grey: Any = None  # [H, W, C]
    error: str | None = None


def _read(model: Model, images: Any, numbers: range) -> Iterator[list[_Image]]:
    """Reads as many images at a time as fit into memory."""
    chunk, pixels = [], 0
    names = getattr(images, "names", None)
    for i in numbers:
        name = names[i] if names is not None else str(i)
        try:
            raw = np.asarray(images[i])
            chunk.append(_Image(i, name, raw, model.preprocessing.grey(raw, name)))
            pixels += chunk[-1].grey.size
        except ImageError as error:
            chunk.append(_Image(i, name, error=str(error)))
        if len(chunk) == IMAGES_AT_ONCE or pixels > PIXELS_AT_ONCE:
            yield chunk
            chunk, pixels = [], 0
    if chunk:
        yield chunk


def _analyse_chunk(
    model: Model,
    chunk: Sequence[_Image],
    wanted: Wanted,
    done: Sequence[Record],
    draw: Draw | None,
) -> list[Record]:
    readable = [image for image in chunk if image.error is None]
    corrected = [model.preprocessing.corrected(image.grey) for image in readable]
    seen = [model.preprocessing.zoomed(image) for image in corrected]
    detected, appearance = model.decompose(seen, wanted.max_objects, wanted.min_score)
    latents = np.zeros((0, model.settings.latent_size), np.float32)
    decoded = model.decode(np.concatenate([latents, *appearance]))
    sprites = decomposition.split(decoded, [len(z) for z in appearance])
    bounds = _bounds(model, readable, seen, detected, wanted, done)
    records = {}
    for image, levels, x, one, z_app, drawn in zip(
        readable, corrected, seen, detected, appearance, sprites, strict=True
    ):
        likelihood, size = likelihoods.of(model.settings), image.grey.shape[:2]
        measured = objects.measure(
            one.location, drawn, one.score, one.canvas, image.grey, likelihood, size
        )
        unexplained = _unexplained(model, x, one, drawn)
        log_p = bounds.get(image.number)
        record = objects.record(image.name, size, measured, unexplained, log_p)
        if wanted.masks:
            _add_masks(record, levels.max(-1), one, drawn)
        if wanted.appearances:
            for thing, z in zip(record["objects"], z_app, strict=True):
                thing["appearance"] = z.astype(float).round(4).tolist()
        records[image.number] = record
        if draw is not None:
            draw(image.number, image.raw, record)
    return [records.get(i.number) or objects.failure(i.name, i.error or "") for i in chunk]


def _add_masks(record: Record, levels: np.ndarray, one: Detections, sprites: np.ndarray) -> None:
    """Adds each object's mask, in the pixels of the user's image, and its area."""
    labels = masks.label(one.location, sprites, levels, one.canvas)
    for thing, mask in zip(record["objects"], masks.encode(labels, len(sprites)), strict=True):
        thing |= {"area": masks.area(mask), "mask": mask}


def _unexplained(model: Model, x: np.ndarray, one: Detections, sprites: np.ndarray) -> float | None:
    """The share of the foreground that no sprite covers; None if there is no foreground."""
    likelihood = likelihoods.of(model.settings)
    foreground = np.asarray(likelihood.is_foreground(x))
    if not foreground.any():
        return None
    drawn = placement.compose(sprites, one.location, one.canvas, model.settings.composition)
    covered = likelihood.is_foreground(drawn)
    return float((foreground & ~covered).sum() / foreground.sum())


def _bounds(
    model: Model,
    readable: Sequence[_Image],
    seen: Sequence[np.ndarray],
    detected: Sequence[Detections],
    wanted: Wanted,
    done: Sequence[Record],
) -> dict[int, float]:
    """Bounds on log p(x), by the number of the image.

    An image has one if it is binary, its number of objects is in the support of p(n), and its size
    is one of the first few different sizes.
    """
    if not wanted.num_samples or model.preprocessing.levels == "grey":
        return {}
    sizes = [(record["height"], record["width"]) for record in done]
    all_sizes = dict.fromkeys([*sizes, *(one.canvas for one in detected)])
    sizes = [size for size in all_sizes if size[0] and not tiles.is_large(size)][:SIZES_WITH_BOUND]
    fitting: dict[tuple[int, int], list[int]] = {}
    for k, (image, one) in enumerate(zip(readable, detected, strict=True)):
        in_support = one.num_detected <= model.settings.max_objects
        enough_pixels = math.prod(one.canvas) >= model.settings.max_objects
        is_allowed = in_support and enough_pixels and one.canvas in sizes
        if is_allowed and is_binary(image.grey):
            fitting.setdefault(one.canvas, []).append(k)
    plain = model.with_preprocessing(invert=False)  # for preprocessed images
    bounds: dict[int, float] = {}
    for group in fitting.values():
        numbers = [readable[k].number for k in group]
        x = np.stack([seen[k] for k in group])
        most = max(detected[k].num_detected for k in group)
        bound = plain.bound(x, wanted.num_samples, indices=numbers, max_objects=most)
        bounds |= dict(zip(numbers, map(float, bound.log_p), strict=True))
    return bounds
