"""Anyone's images as a data set: a folder, an array in a file, or a prepared TFDS data set.

`open_images` gives random access to images as they are, of any size; `Crops` makes of them what
a model is trained on: binary canvases of one size, cut out at places that are drawn anew at each
step. An object that the border of a crop cuts is learnt as what is seen of it, at the centre of
that; in whole images only those on the image's own border are cut.
"""

import copy
import csv
import dataclasses
import functools
import hashlib
import pathlib
import re
import zipfile
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import skimage.filters
import skimage.measure
import tensorflow_datasets as tfds
import tqdm
from ml_collections import ConfigDict
from PIL import Image

from datasets import DatasetError
from lavae_jax.input_pipeline import Batch

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
MEMBERS = ("x", "image", "images")  # of an .npz, in this order
NAME_COLUMNS = ("image", "file", "filename", "name")  # of a CSV file with counts
KEPT_BYTES = 2 << 30  # decoded images that are kept in memory; others are read again each time
LOOKED_AT = 500  # images that thresholds and sizes are judged by
MOSTLY_LIT = 0.5
SPECK = 2  # pixels that are no object yet
SKIP = ". (config.dataset.unreadable='skip' does without such files)"


class Images(Protocol):
    """Random access to images as they are stored."""

    names: Sequence[str]
    counts: Sequence[int] | None  # of objects, where somebody knows
    fingerprint: str  # which images these are, as far as can be seen without reading all

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> np.ndarray:
        """[H, W, C] float32 in 0..1, with 1 or 3 channels."""


# --- from files --------------------------------------------------------------


def open_images(path: str, member: str = "", data_dir: str | None = None) -> Images:
    """Images of a folder or a file, an `.npy` or `.npz` array [N, H, W] or [N, H, W, C], or
    tfds:name/config of a prepared TFDS data set.

    `member` names the array of an `.npz`, or the split of a TFDS data set [train].
    """
    if not path:
        raise DatasetError("no images are named; give a folder, an .npy or .npz file, or tfds:name")
    if path.startswith("tfds:"):
        return _Tfds.open(path.removeprefix("tfds:"), member or "train", data_dir)
    file = pathlib.Path(path).expanduser()
    if file.is_dir():
        return Files.open(file)
    if not file.exists():
        raise DatasetError(f"{path} is neither a folder nor a file")
    if file.suffix.lower() in (".npy", ".npz"):
        return _open_array(file, member)
    return Files([file], file.parent)


def _hash(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Files:
    paths: Sequence[pathlib.Path]
    folder: pathlib.Path

    @classmethod
    def open(cls, folder: pathlib.Path) -> "Files":
        """All images of a folder and of those within it, in the order of their names."""
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not paths:
            raise DatasetError(f"{folder} has no images ({', '.join(SUFFIXES)}), nor its folders")
        return cls(paths, folder)

    @functools.cached_property
    def names(self) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in self.paths]

    @functools.cached_property
    def counts(self) -> np.ndarray | None:
        return _counts_beside(self.folder, self.names)

    @property
    def fingerprint(self) -> str:
        return _hash(self.names, [path.stat().st_size for path in self.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> np.ndarray:
        return read_image(self.paths[i])


def read_image(path: pathlib.Path) -> np.ndarray:
    """[H, W, C] float32 in 0..1; what is transparent is black."""
    try:
        with Image.open(path) as image:
            if (pages := getattr(image, "n_frames", 1)) > 1:
                raise DatasetError(f"{path} has {pages} pages; save each as a file of its own")
            if image.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV"):
                image = image.convert("RGBA" if "transparency" in image.info else "RGB")
            if image.mode == "LA":
                image = image.convert("RGBA")
            if image.mode == "RGBA":
                image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
                image = image.convert("RGB")
            return as_floats(np.asarray(image), str(path))
    except DatasetError:
        raise
    except Exception as error:  # Pillow has no end of them for files that are damaged
        raise DatasetError(f"{path} cannot be read: {error}") from error


def as_floats(image: np.ndarray, name: str) -> np.ndarray:
    """[H, W] or [H, W, C] of whatever type, as [H, W, C] in 0..1."""
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[-1] not in (1, 3):
        raise DatasetError(f"{name} has shape {image.shape}; wanted is [H, W], [H, W, 1] or 3")
    if image.dtype == bool:
        return image.astype(np.float32)
    if image.dtype == np.uint8:
        return image.astype(np.float32) / 255
    low, high = (float(image.min()), float(image.max())) if image.size else (0.0, 0.0)
    most = 1.0 if np.issubdtype(image.dtype, np.floating) else 65_535.0
    if not (low >= 0 and high <= most):
        raise DatasetError(
            f"{name} is of type {image.dtype} and reaches from {low:g} to {high:g}; wanted are "
            "0 to 255 (uint8), 0 to 65535 (other whole numbers) or 0 to 1 (float)"
        )
    return image.astype(np.float32) / most


def _counts_beside(folder: pathlib.Path, names: Sequence[str]) -> np.ndarray | None:
    """The column `count` of a CSV file in the folder that has a row for every image."""
    for path in sorted(folder.glob("*.csv")):
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.DictReader(file)
                columns = rows.fieldnames or ()
                named = next((column for column in NAME_COLUMNS if column in columns), None)
                # What a model has found is no truth.
                if named is None or "count" not in columns or "unexplained" in columns:
                    continue
                by_name = {row[named]: row["count"] for row in rows}
        except (UnicodeDecodeError, csv.Error) as error:
            raise DatasetError(f"{path} cannot be read: {error}") from error
        missing = [name for name in names if name not in by_name]
        if missing:
            raise DatasetError(f"{path} has counts, but none of {missing[0]}")
        wrong = [name for name in names if not re.fullmatch(r"[0-9]+", by_name[name] or "")]
        if wrong:
            raise DatasetError(f"{path}: the count of {wrong[0]} is {by_name[wrong[0]]!r}")
        return np.array([int(by_name[name]) for name in names], np.int32)
    return None


# --- from arrays and TFDS ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Array:
    array: np.ndarray  # [N, H, W] or [N, H, W, C]
    source: str
    counts_in: pathlib.Path | None = None  # an .npz with a member called so

    @functools.cached_property
    def names(self) -> list[str]:
        return [str(i) for i in range(len(self))]

    @functools.cached_property
    def counts(self) -> np.ndarray | None:
        if self.counts_in is None:
            return None
        try:
            counts = np.load(self.counts_in, allow_pickle=False)["count"]
        except ValueError as error:
            raise DatasetError(f"`count` in {self.counts_in} cannot be read: {error}") from error
        if counts.shape != (len(self),) or not np.issubdtype(counts.dtype, np.integer):
            raise DatasetError(
                f"`count` in {self.counts_in} is {counts.dtype} {counts.shape}; one for each image"
            )
        return counts.astype(np.int32)

    @property
    def fingerprint(self) -> str:
        ends = [np.asarray(self.array[i]).tobytes() for i in (0, -1)]
        return _hash(self.array.shape, str(self.array.dtype), *ends)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> np.ndarray:
        return as_floats(np.asarray(self.array[i]), f"{self.source}[{i}]")


def _open_array(path: pathlib.Path, member: str) -> _Array:
    """Arrays that are pickled could run anything, so they are never loaded."""
    try:
        if path.suffix.lower() == ".npy":
            return _checked_array(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
        with np.load(path, allow_pickle=False) as members:
            name = member or next((name for name in MEMBERS if name in members), "")
            if not name and len(members.files) == 1:
                name = members.files[0]
            if name not in members:
                there = ", ".join(members.files)
                wanted = f"no array {member!r}" if member else f"none of {', '.join(MEMBERS)}"
                raise DatasetError(f"{path} has {wanted}; name one with `member`: {there}")
            counts_in = path if "count" in members and name != "count" else None
            return _checked_array(members[name], f"{path}:{name}", counts_in)
    except (TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path} cannot be read as an array: {error}") from error


def _checked_array(array: np.ndarray, name: str, counts_in: pathlib.Path | None = None) -> _Array:
    if 0 in array.shape:
        raise DatasetError(f"{name} has shape {array.shape}: there is no image in it")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[-1] not in (1, 3)):
        raise DatasetError(f"{name} has shape {array.shape}; wanted is [N, H, W] or [N, H, W, C]")
    return _Array(array, name, counts_in)


@dataclasses.dataclass(frozen=True)
class _Tfds:
    records: Sequence[bytes]
    features: tfds.features.FeaturesDict
    source: str
    counts: "_Counts | None" = None

    @classmethod
    def open(cls, name: str, split: str, data_dir: str | None) -> "_Tfds":
        try:
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
            raw = tfds.decode.DeserializeMethod.RAW_BYTES
            records = builder.as_data_source(split, deserialize_method=raw)
        except Exception as error:  # TFDS has many, and says in each what is missing
            reason = str(error).strip().splitlines()
            reason = reason[0] if reason else repr(error)
            raise DatasetError(
                f"tfds:{name} cannot be opened (it must be prepared, as array_record: tfds build "
                f"--file_format=array_record): {reason}"
            ) from error
        known = builder.info.features
        if "image" not in known:
            raise DatasetError(f"tfds:{name} has no feature `image`; it has {', '.join(known)}")
        image = tfds.features.FeaturesDict({"image": known["image"]})
        counts = None
        if "count" in known:
            counts = _Counts(records, tfds.features.FeaturesDict({"count": known["count"]}))
        return cls(records, image, f"tfds:{name}", counts)

    @functools.cached_property
    def names(self) -> list[str]:
        return [str(i) for i in range(len(self))]

    @property
    def fingerprint(self) -> str:
        return _hash(self.source, len(self), self.records[0], self.records[len(self) - 1])

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> np.ndarray:
        image = self.features.deserialize_example_np(self.records[i])["image"]
        return as_floats(image, f"{self.source}[{i}]")


@dataclasses.dataclass(frozen=True)
class _Counts:
    records: Sequence[bytes]
    features: tfds.features.FeaturesDict

    def __getitem__(self, i: int) -> int:
        return int(self.features.deserialize_example_np(self.records[i])["count"])


# --- what a model sees -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Look:
    """How an image is turned into bright objects on a black canvas.

    invert: objects are dark on a bright background.
    threshold: pixels above it are lit; None for pixels that are lit with their value for a
        probability, drawn anew each time.
    """

    channels: int
    invert: bool
    threshold: float | None

    def grey(self, image: np.ndarray, name: str) -> np.ndarray:
        """[H, W, channels] in 0..1, bright on dark."""
        if image.shape[-1] == 3 and self.channels == 1:
            image = image @ np.array([[0.299], [0.587], [0.114]], np.float32)
        if image.shape[-1] != self.channels:
            raise DatasetError(
                f"{name} has {image.shape[-1]} channel, and the model has {self.channels} (to "
                f"train on such images, set config.model.channels={image.shape[-1]})"
            )
        return 1 - image if self.invert else image

    def lit(self, grey: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """0 or 1."""
        drawn = self.threshold is None
        threshold = random.random(grey.shape, np.float32) if drawn else self.threshold
        return (grey > threshold).astype(np.float32)


def make_look(
    images: Images, channels: int, invert: bool, threshold: str, skip_unreadable: bool = False
) -> Look:
    """`threshold`: a number, `otsu` (one for all images), or `stochastic`."""
    if threshold == "stochastic":
        return Look(channels, invert, None)
    if threshold != "otsu":
        try:
            number = float(threshold)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1:
            raise DatasetError(
                f"threshold={threshold!r} must be a number from 0 to 1, 'otsu' or 'stochastic'"
            )
        return Look(channels, invert, number)
    look, sample = Look(channels, invert, None), {}  # how often there is which of 65,536 levels
    for i in _evenly(len(images)):
        try:
            grey = look.grey(images[i], images.names[i])
        except DatasetError as error:
            if not skip_unreadable:
                raise DatasetError(f"{error}{SKIP}") from error
            continue
        levels, numbers = np.unique(np.rint(grey * 65_535).astype(int), return_counts=True)
        for level, number in zip(levels.tolist(), numbers.tolist(), strict=True):
            sample[level] = sample.get(level, 0) + number
    if len(sample) < 2:
        value = next(iter(sample)) / 65_535 if sample else 0.0
        raise DatasetError(f"every pixel of these images has the same value, {value:.3g}")
    low, high = min(sample) / 65_535, max(sample) / 65_535
    histogram, edges = np.histogram(
        np.array(list(sample)) / 65_535, 256, (low, high), weights=np.array(list(sample.values()))
    )
    middles = (edges[:-1] + edges[1:]) / 2
    found = skimage.filters.threshold_otsu(hist=(histogram, middles))
    there = middles[histogram > 0]
    # In the middle of values that no pixel has, where Otsu's method has no preference.
    return Look(
        channels, invert, float(there[there <= found].max() + there[there > found].min()) / 2
    )


def _evenly(length: int, most: int = LOOKED_AT) -> list[int]:
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(int)).tolist()


class Crops:
    """Images as binary canvases of one size, a source of batches.

    Which part of an image that is and, with a stochastic look, which pixels are lit depends on
    the number of the draw; without one it is always the same. Smaller images have black below
    and to the right.
    """

    def __init__(
        self,
        images: Images,
        look: Look,
        canvas: tuple[int, int],
        seed: int = 0,
        skip_unreadable: bool = False,
        with_counts: bool = False,
    ):
        self.look, self.canvas, self.seed = look, canvas, seed
        self.counts = images.counts if with_counts else None
        self.skipped: list[str] = []  # what was wrong with each
        self.shapes: list[tuple[int, int]] = []
        self._images, self._number, self._kept = images, [], []
        room = KEPT_BYTES
        for i in tqdm.tqdm(range(len(images)), desc="reading images", mininterval=1.0, delay=3.0):
            try:
                image = look.grey(images[i], images.names[i])
            except DatasetError as error:
                if not skip_unreadable:
                    raise DatasetError(f"{error}{SKIP}") from error
                self.skipped.append(str(error))
                continue
            image = _as_bytes(image)
            room -= image.nbytes
            self.shapes.append(image.shape[:2])
            self._number.append(i)
            self._kept.append(image if room > 0 else None)
        if not self._number:
            raise DatasetError(f"no image can be read; the first: {self.skipped[0]}")
        self._tallest, self._widest = np.max(self.shapes, axis=0).tolist()

    def with_canvas(self, canvas: tuple[int, int]) -> "Crops":
        """Of another size, out of the same images, which are not read again."""
        other = copy.copy(self)
        other.canvas = canvas
        return other

    @property
    def whole(self) -> bool:
        """Whether no image is larger than the canvas."""
        return self._tallest <= self.canvas[0] and self._widest <= self.canvas[1]

    @functools.cached_property
    def names(self) -> list[str]:
        return [self._images.names[i] for i in self._number]

    @property
    def varies(self) -> bool:
        return not self.whole or self.look.threshold is None

    def __len__(self) -> int:
        return len(self._number)

    def read(self, index: Sequence[int], draws: Sequence[int] | None = None) -> Batch:
        draws = index if draws is None else draws
        crops = [self._crop(int(i), int(draw)) for i, draw in zip(index, draws, strict=True)]
        batch = {"image": np.stack(crops)}
        if self.counts is not None and self.whole:
            counts = [self.counts[self._number[i]] for i in index]
            batch["count"] = np.array(counts, np.int32)
        return batch

    def _crop(self, i, draw):
        random = np.random.Generator(np.random.Philox(key=[self.seed, draw]))
        image = self._kept[i]
        if image is None:
            number = self._number[i]
            image = _as_bytes(self.look.grey(self._images[number], self._images.names[number]))
        height, width, channels = image.shape
        top = int(random.integers(max(height - self.canvas[0], 0) + 1))
        left = int(random.integers(max(width - self.canvas[1], 0) + 1))
        part = image[top : top + self.canvas[0], left : left + self.canvas[1]]
        part = part.astype(np.float32) / 255 if part.dtype == np.uint8 else part
        canvas = np.zeros((*self.canvas, channels), np.float32)
        canvas[: part.shape[0], : part.shape[1]] = self.look.lit(part, random)
        return canvas


def _as_bytes(image):
    """The same in a quarter of the memory, where that changes nothing."""
    levels = image * 255
    is_same = np.abs(levels - np.rint(levels)).max(initial=0) < 1e-3
    return np.rint(levels).astype(np.uint8) if is_same else image


# --- from a run's config -----------------------------------------------------


def open_crops(config: ConfigDict) -> Crops:
    """What a run whose data set is called `images` is trained on."""
    dataset, channels = config.dataset, config.model.channels
    if dataset.unreadable not in ("refuse", "skip"):
        raise DatasetError(f"config.dataset.unreadable={dataset.unreadable!r}: 'refuse' or 'skip'")
    images = open_images(dataset.path, dataset.member, dataset.data_dir or None)
    skip = dataset.unreadable == "skip"
    look = make_look(images, channels, dataset.invert, dataset.threshold, skip)
    canvas = (dataset.canvas, dataset.canvas)
    return Crops(images, look, canvas, config.seed, skip, with_counts=True)


def trained_look(config: ConfigDict) -> Look:
    """How a trained model saw images; pixels that were lit by chance are lit from one half on."""
    dataset = config.dataset
    threshold = dataset.get("threshold", "0.5")
    threshold = 0.5 if threshold == "stochastic" else float(threshold)
    return Look(config.model.channels, dataset.get("invert", False), threshold)


def settle(config: ConfigDict) -> None:
    """Puts into the config the number that Otsu's method finds, so that a trained model knows
    it, and a fingerprint of the images, so that a run is not taken up with others."""
    dataset = config.dataset
    images = open_images(dataset.path, dataset.member, dataset.data_dir or None)
    dataset.images = f"{len(images)} ({images.fingerprint})"
    if dataset.threshold == "otsu":
        skip = dataset.unreadable == "skip"
        look = make_look(images, config.model.channels, dataset.invert, "otsu", skip)
        dataset.threshold = f"{look.threshold:.6f}"


def held_out(wanted: float, images: int) -> int:
    """A share of the images if it is below 1, else a number of them."""
    number = round(wanted * images) if wanted < 1 else int(wanted)
    if not 0 < number < images:
        raise DatasetError(
            f"config.dataset.held_out={wanted:g} of {images} images leaves none, here or there; "
            "set another number, and cut a single large image into several"
        )
    return number


# --- what is in them ---------------------------------------------------------


class Parts(NamedTuple):
    """The connected parts of some crops: what objects are made of, if they do not touch."""

    side: np.ndarray  # of each: the larger one of its box
    count: np.ndarray  # of each crop
    lit: float  # the share of pixels


def parts(crops: Crops, most: int = LOOKED_AT) -> Parts:
    """Of images spread evenly over all of them. Specks of a pixel or two do not count."""
    sides, counts, lit = [], [], []
    for i in _evenly(len(crops), most):
        image = crops.read([i])["image"][0].max(-1) > 0
        regions = skimage.measure.regionprops(skimage.measure.label(image))
        boxes = [r.bbox for r in regions if r.area > SPECK]
        sides += [max(bottom - top, right - left) for top, left, bottom, right in boxes]
        counts.append(len(boxes))
        height, width = np.minimum(crops.shapes[i], crops.canvas)
        lit.append(image[:height, :width].mean())
    return Parts(np.array(sides, int), np.array(counts, int), float(np.mean(lit)))


def check_light(lit: float, look: Look) -> None:
    """Refuses images that are black, or mostly lit."""
    threshold = "drawn" if look.threshold is None else f"{look.threshold:.3g}"
    if lit == 0:
        raise DatasetError(
            f"every pixel is black (threshold {threshold}). Objects must be bright: invert dark "
            "ones (config.dataset.invert=True, --invert), or set the threshold"
        )
    if lit > MOSTLY_LIT:
        raise DatasetError(
            f"{lit:.0%} of the pixels are lit (threshold {threshold}), but objects are bright on "
            "black: invert dark ones (config.dataset.invert=True, --invert), or set the threshold"
        )


def check(crops: Crops, sprite_size: int, max_objects: int) -> list[str]:
    """Refuses what cannot be learnt from, and says what looks wrong."""
    found = parts(crops)
    check_light(found.lit, crops.look)
    if min(crops.canvas) < sprite_size:
        raise DatasetError(
            f"a canvas of {crops.canvas[0]}x{crops.canvas[1]} is smaller than a sprite of "
            f"{sprite_size}; set config.dataset.canvas or config.model.sprite_size"
        )
    for name, (height, width) in zip(crops.names, crops.shapes, strict=True):
        if min(height, width) < sprite_size:
            raise DatasetError(
                f"{name} has {height}x{width} pixels, and a sprite has {sprite_size}x{sprite_size};"
                " leave such images out or set config.model.sprite_size"
            )
    said = [f"skipped: {reason}" for reason in crops.skipped]
    if crops.counts is not None and not crops.whole:
        said.append(
            "counts are of whole images, and canvases are parts of them, so that count accuracy is "
            "not shown; a config.dataset.canvas as large as the images would do"
        )
    if len(found.side) and np.quantile(found.side, 0.95) > sprite_size:
        said.append(
            f"one in 20 connected parts is larger than config.model.sprite_size={sprite_size} "
            f"({int(np.quantile(found.side, 0.95))} pixels); launch/show_data.py --dataset=images "
            "proposes a size"
        )
    if (found.count > max_objects).mean() > 0.01:
        said.append(
            f"canvases have up to {found.count.max()} connected parts, but "
            f"config.model.max_objects={max_objects}; set it higher, or a smaller canvas"
        )
    return said


class Proposal(NamedTuple):
    sprite_size: int
    canvas: int
    max_objects: int


def propose(found: Parts, image_side: int) -> Proposal:
    """Settings for what was found in whole images or large crops of them.

    A sprite is odd and a pixel larger, on either side, than all but one in a hundred parts; a
    canvas has four sprites in a row, and at least 64 pixels unless images are smaller.
    """
    if not len(found.side):
        raise DatasetError("there is nothing but specks in these images; try another threshold")
    largest = int(np.ceil(np.quantile(found.side, 0.99)))
    sprite = max(5, (largest + 2) | 1)
    canvas = min(max(64, -(-4 * sprite // 16) * 16), -(-image_side // 4) * 4)
    most = int(np.quantile(found.count, 0.999)) if len(found.count) else 0
    return Proposal(sprite, canvas, max(10, -(-most * 5 // 4)))
