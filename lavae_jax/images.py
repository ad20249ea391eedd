"""Custom images: a folder, an array in a file, or a prepared TFDS data set.

`open_images` gives random access to images as they are stored, of any size and type. Models apply
their own preprocessing to them. `crops` turns them into training data.
"""

import csv
import dataclasses
import functools
import hashlib
import pathlib
import re
import threading
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image, ImageOps

from lavae_jax.preprocessing import ImageError

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm")
MEMBERS = ("x", "image", "images")  # of an .npz, in this order
NAME_COLUMNS = ("image", "file", "filename", "name")  # of a CSV file with counts


class Images(Protocol):
    """Random access to images as they are stored.

    Attributes:
        names: the names of the images.
        counts: the number of objects in each image, where known.
        fingerprint: a hash of the images' contents.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def counts(self) -> "Counts | None": ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> np.ndarray:
        """[H, W] or [H, W, 1 or 3], of any type."""


class Counts(Protocol):
    """Random access to the number of objects in each image."""

    def __getitem__(self, i: int, /) -> Any: ...


# --- from files --------------------------------------------------------------


def open_images(path: str, member: str = "", data_dir: str | None = None) -> Images:
    """Opens a collection of images.

    Args:
        path: a folder, an image file, an `.npy` or `.npz` array [N, H, W] or [N, H, W, C], or
            tfds:name/config for a prepared TFDS data set.
        member: the array of an `.npz`, or the split of a TFDS data set; by default the array is
            called x, image or images, and the split train.
        data_dir: where TFDS finds the data set; None for its default.

    Returns:
        The images.

    Raises:
        ImageError: if there are no images, or they cannot be read.
    """
    if not path:
        raise ImageError(
            "no path to images; give a folder, an .npy or .npz file, or tfds:name (lavae show "
            "--path, lavae infer --images, lavae train --config.dataset.path)"
        )
    if path.startswith("tfds:"):
        return _Tfds.open(path.removeprefix("tfds:"), member or "train", data_dir)
    file = pathlib.Path(path).expanduser()
    if file.is_dir():
        return Files.open(file)
    if not file.exists():
        raise ImageError(f"{path} is neither a folder nor a file")
    if file.suffix.lower() in (".npy", ".npz"):
        return _open_array(file, member)
    return Files([file], file.parent)


def _hash(*parts: str | bytes | memoryview) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Files:
    """Images in files.

    Attributes:
        paths: the files.
        folder: a folder that contains all of them.
    """

    paths: Sequence[pathlib.Path]
    folder: pathlib.Path

    @classmethod
    def open(cls, folder: pathlib.Path) -> "Files":
        """Finds all images in a folder and its subfolders.

        Args:
            folder: the folder.

        Returns:
            The images in the order of their names.

        Raises:
            ImageError: if there are none.
        """
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not paths:
            raise ImageError(
                f"neither {folder} nor its subfolders contain images ({', '.join(SUFFIXES)})"
            )
        return cls(paths, folder)

    @functools.cached_property
    def names(self) -> list[str]:
        """Names the images.

        Returns:
            The files' paths, relative to the folder.
        """
        return [str(path.relative_to(self.folder)) for path in self.paths]

    @functools.cached_property
    def counts(self) -> np.ndarray | None:
        """Reads the number of objects in each image.

        Returns:
            [N], from a CSV file in the folder with a column `count`; None if there is no such file.

        Raises:
            ImageError: if the file has no valid count for one of the images.
        """
        return _counts_beside(self.folder, self.names)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hashes the names and contents of all files.

        Returns:
            The hash.
        """
        return _hash(repr(self.names), *(_content_hash(path) for path in self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> np.ndarray:
        return read_image(self.paths[i])


def _content_hash(path: pathlib.Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:  # such as a broken link
        return b"unreadable"


_LOCK = threading.Lock()


def _open(path: pathlib.Path) -> Image.Image:
    """Opens an image without Pillow's size limit, since large images are processed in tiles."""
    with _LOCK:
        most_pixels, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = most_pixels


def read_image(path: pathlib.Path) -> np.ndarray:
    """Reads an image file.

    Args:
        path: the file.

    Returns:
        [H, W] or [H, W, 3] as stored, rotated upright, black where transparent.

    Raises:
        ImageError: if the file cannot be read, or has several pages.
    """
    try:
        with _open(path) as image:
            if (pages := getattr(image, "n_frames", 1)) > 1:
                raise ImageError(f"{path} has {pages} pages; save each as a file of its own")
            image = ImageOps.exif_transpose(image)
            if "transparency" in image.info or image.mode in ("LA", "PA"):
                image = image.convert("RGBA")
            if image.mode in ("P", "CMYK", "YCbCr", "LAB", "HSV"):
                image = image.convert("RGB")
            if image.mode == "RGBA":
                image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
                image = image.convert("RGB")
            pixels = np.asarray(image)
            if image.mode == "I" and pixels.min() >= 0 and pixels.max() <= 65_535:
                return pixels.astype(np.uint16)  # 16 bits, which Pillow reads as 32 from some files
            return pixels
    except ImageError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise ImageError(f"{path} cannot be read: {error}") from error


def _counts_beside(folder: pathlib.Path, names: Sequence[str]) -> np.ndarray | None:
    """The column `count` of a CSV file in the folder that has a row for every image."""
    for path in sorted(folder.glob("*.csv")):
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.DictReader(file)
                columns = rows.fieldnames or ()
                named = next((column for column in NAME_COLUMNS if column in columns), None)
                # A column `unexplained` marks a model's output, which is not ground truth.
                if named is None or "count" not in columns or "unexplained" in columns:
                    continue
                by_name = {row[named]: row["count"] for row in rows}
        except (UnicodeDecodeError, csv.Error) as error:
            raise ImageError(f"{path} cannot be read: {error}") from error
        missing = [name for name in names if name not in by_name]
        if missing:
            raise ImageError(f"{path} has counts, but none for {missing[0]}")
        wrong = [name for name in names if not re.fullmatch(r"[0-9]+", by_name[name] or "")]
        if wrong:
            raise ImageError(
                f"{path}: the count of {wrong[0]} is {by_name[wrong[0]]!r}; expected a whole number"
            )
        return np.array([int(by_name[name]) for name in names], np.int32)
    return None


# --- from arrays and TFDS ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Array:
    array: np.ndarray  # [N, H, W] or [N, H, W, C]
    source: str
    counts_in: pathlib.Path | None = None  # an .npz with a member `count`

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
            raise ImageError(f"`count` in {self.counts_in} cannot be read: {error}") from error
        if counts.shape != (len(self),) or not np.issubdtype(counts.dtype, np.integer):
            raise ImageError(
                f"`count` in {self.counts_in} has type {counts.dtype} and shape {counts.shape}; "
                "expected a whole number for each image"
            )
        return counts.astype(np.int32)

    @functools.cached_property
    def fingerprint(self) -> str:
        parts = (np.ascontiguousarray(self.array[i]).data for i in range(len(self)))
        return _hash(repr(self.array.shape), str(self.array.dtype), *parts)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> np.ndarray:
        return np.asarray(self.array[i])


def _open_array(path: pathlib.Path, member: str) -> _Array:
    """Opens an array; pickled ones are refused, since loading them could execute code."""
    try:
        if path.suffix.lower() == ".npy":
            return _checked_array(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
        with np.load(path, allow_pickle=False) as members:
            name = member or next((name for name in MEMBERS if name in members), "")
            if not name and len(members.files) == 1:
                name = members.files[0]
            if name not in members:
                there = ", ".join(members.files)
                missing = f"no array {member!r}" if member else f"none of {', '.join(MEMBERS)}"
                raise ImageError(
                    f"{path} has {missing}; name one with `member` (--member): {there}"
                )
            counts_in = path if "count" in members and name != "count" else None
            return _checked_array(members[name], f"{path}:{name}", counts_in)
    except (TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{path} cannot be read as an array: {error}") from error


def _checked_array(array: np.ndarray, name: str, counts_in: pathlib.Path | None = None) -> _Array:
    if 0 in array.shape:
        raise ImageError(f"{name} has shape {array.shape}: it contains no image")
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[-1] not in (1, 3)):
        raise ImageError(f"{name} has shape {array.shape}; expected [N, H, W] or [N, H, W, C]")
    return _Array(array, name, counts_in)


@dataclasses.dataclass(frozen=True)
class _Tfds:
    records: Sequence[bytes]
    features: "tfds.features.FeaturesDict"
    source: str
    counts: "_Counts | None" = None

    @classmethod
    def open(cls, name: str, split: str, data_dir: str | None) -> "_Tfds":
        try:
            import tensorflow_datasets as tfds
        except ModuleNotFoundError as error:
            raise ImageError(
                f"tfds:{name} needs the package tensorflow-datasets: pip install 'lavae_jax[data]'"
            ) from error
        try:
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
            raw = tfds.decode.DeserializeMethod.RAW_BYTES
            records = builder.as_data_source(split, deserialize_method=raw)
        except Exception as error:  # TFDS raises many kinds; each message says what is missing
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else repr(error)
            raise ImageError(
                f"tfds:{name} cannot be opened (it must be prepared, as array_record: tfds build "
                f"--file_format=array_record): {reason}"
            ) from error
        known = builder.info.features
        if "image" not in known:
            raise ImageError(f"tfds:{name} has no feature `image`; it has {', '.join(known)}")
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
        """A hash of the first and last record; a version of a TFDS data set never changes."""
        ends = self.records[0], self.records[len(self) - 1]
        return _hash(self.source, str(len(self)), *ends)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.features.deserialize_example_np(self.records[i])["image"]


@dataclasses.dataclass(frozen=True)
class _Counts:
    records: Sequence[bytes]
    features: "tfds.features.FeaturesDict"

    def __getitem__(self, i: int) -> int:
        return int(self.features.deserialize_example_np(self.records[i])["count"])
