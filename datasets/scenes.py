"""Scenes of objects on a black canvas: what the data sets share.

A data set is a *bank* of K sprites. A scene is a count, a layout of that many boxes, and for each
box the index of a sprite. By default, boxes do not overlap; in data sets where they may, later
objects cover earlier ones. Every random number is an integer from a counter-based stream that is
keyed by (data set, seed, split, chunk). So a scene's bytes depend on nothing else: not on the
machine, the version of numpy, or the process that generates a chunk.
"""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
import tqdm

from datasets import entropy

CHUNK = 1_000  # scenes that share a random stream


class Bank(NamedTuple):
    """The K sprites that a data set draws from, and their attributes."""

    sprites: np.ndarray  # [K, box, box, C] uint8, 0 or 1 (grey scenes: 0 to 255)
    attributes: dict[str, np.ndarray]  # each [K] int32


class Examples(NamedTuple):
    """N scenes of at most S objects, with ground truth. Values of absent objects are -1."""

    image: np.ndarray  # [N, H, W, C] uint8, 0 or 255 (grey scenes: 0 to 255)
    mask: np.ndarray  # [N, H, W] uint8: 1..S, the last object at the pixel; 0: background
    count: np.ndarray  # [N] int32
    locations: np.ndarray  # [N, S, 2] int32: row and column of each box's centre
    objects: np.ndarray  # [N, S] int32: index into the bank
    centres: np.ndarray  # [N, S, 2] float32: centre of mass of all pixels of an object
    hidden: np.ndarray  # [N, S] float32: share of an object's pixels that others hide


# --- random integers ---------------------------------------------------------


def stream(*key) -> np.random.Philox:
    """Makes the random stream of a key.

    Args:
        *key: printable values; every key has a stream of its own.

    Returns:
        The bit generator.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(digest, "little"))


def integers(bits: np.random.Philox, bound: int, shape) -> np.ndarray:
    """Draws uniform integers from a generator's raw output.

    numpy guarantees that raw output never changes, but gives no such guarantee for
    `Generator.integers`. The bias is at most bound / 2**32.

    Args:
        bits: the random stream.
        bound: the integers are in [0, bound).
        shape: the shape of the result.

    Returns:
        The integers, int64.
    """
    raw = bits.random_raw(int(np.prod(shape))) >> np.uint64(32)
    return ((raw * np.uint64(bound)) >> np.uint64(32)).astype(np.int64).reshape(shape)


# --- layouts -----------------------------------------------------------------

# Rejection is exact, and cheap if at least this share of the tries succeeds.
_MIN_ACCEPTANCE = 0.05
# Length of the Markov chain for dense layouts; see `_place_by_chain`.
_SWEEPS = 500


def capacity(box: int, canvas: int, apart: int | None = None) -> int:
    """Computes the largest number of boxes that fit on a canvas.

    Args:
        box: height and width of a box.
        canvas: height and width of the canvas.
        apart: the minimum distance between two boxes' corners; see `place`.

    Returns:
        The number of boxes; sys.maxsize if they are independent.
    """
    apart = box if apart is None else apart
    if box > canvas:
        return 0
    return ((canvas - box) // apart + 1) ** 2 if apart else sys.maxsize


def place(
    bits: np.random.Philox,
    num_scenes: int,
    count: int,
    box: int,
    canvas: int,
    apart: int | None = None,
) -> np.ndarray:
    """Draws uniform layouts of boxes inside a canvas.

    Every ordered layout is equally likely. Where affordable, this is exact: all boxes of a layout
    are drawn at once, and rejected if two are too close. Otherwise, layouts come from a Markov
    chain, which is uniform in the limit and is run far beyond the point where its statistics stop
    changing.

    Args:
        bits: the random stream.
        num_scenes: N, the number of layouts.
        count: n, the number of boxes in each.
        box: height and width of a box.
        canvas: height and width of the canvas.
        apart: the minimum distance between two boxes' corners: the larger of their differences in
            rows and in columns. By default it is the box's size, so that no two boxes overlap.
            With 0, boxes are independent.

    Returns:
        The boxes' top left corners, [N, n, 2].

    Raises:
        ValueError: if the boxes do not fit.
    """
    apart = box if apart is None else apart
    if apart == 0:
        return integers(bits, canvas - box + 1, (num_scenes, count, 2))
    if count > capacity(box, canvas, apart):
        condition = "without overlap" if apart == box else f"with corners {apart} pixels apart"
        raise ValueError(
            f"{count} boxes of {box}x{box} do not fit on a {canvas}x{canvas} canvas "
            f"{condition}; at most {capacity(box, canvas, apart)} do. Use fewer objects, "
            "a smaller patch or a larger canvas."
        )
    span = canvas - box + 1
    gap = max(span - apart, 0)
    apart_on_one_axis = gap * (gap + 1) / span**2
    pair_is_free = 1 - (1 - apart_on_one_axis) ** 2
    acceptance = pair_is_free ** (count * (count - 1) / 2)
    method = _place_by_rejection if acceptance >= _MIN_ACCEPTANCE else _place_by_chain
    return method(bits, num_scenes, count, box, canvas, apart=apart)


def too_close(corner: np.ndarray, others: np.ndarray, apart: int) -> np.ndarray:
    """Finds which boxes are too close to another one.

    Args:
        corner: [N, 2].
        others: [N, n, 2].
        apart: the minimum distance between two corners: the larger of their differences in rows
            and in columns.

    Returns:
        Whether `corner` is less than `apart` away from each of `others`, [N, n].
    """
    return (np.abs(corner[:, None] - others) < apart).all(-1)


def _place_by_rejection(bits, num_scenes, count, box, canvas, apart=None):
    apart = box if apart is None else apart
    accepted = np.empty((0, count, 2), np.int64)
    while len(accepted) < num_scenes:
        corners = integers(bits, canvas - box + 1, (2 * num_scenes, count, 2))
        bad = np.zeros(len(corners), bool)
        for k in range(1, count):
            bad |= too_close(corners[:, k], corners[:, :k], apart).any(-1)
        accepted = np.concatenate([accepted, corners[~bad]])
    return accepted[:num_scenes]


def _place_by_chain(bits, num_scenes, count, box, canvas, sweeps=_SWEEPS, apart=None):
    """Metropolis: propose a new position for one box, accept it if it is free.

    Proposals are symmetric (anywhere on the canvas, or a shift of up to a third of a box), so the
    uniform distribution over layouts is stationary. Each scene has its own chain, which starts on
    the cells of a grid.
    """
    apart = box if apart is None else apart
    span = canvas - box + 1
    cells = (canvas - box) // apart + 1
    order = np.argsort(integers(bits, 2**31, (num_scenes, cells**2)), axis=1, kind="stable")
    cell = order[:, :count]
    corners = apart * np.stack([cell // cells, cell % cells], axis=-1)
    reach = max(box // 3, 1)
    for sweep in range(sweeps):
        anywhere = sweep % 2
        draws = integers(bits, span if anywhere else 2 * reach + 1, (count, num_scenes, 2))
        for k in range(count):
            proposal = draws[k] if anywhere else corners[:, k] + draws[k] - reach
            inside = ((proposal >= 0) & (proposal < span)).all(-1)
            meets = too_close(proposal, corners, apart)
            meets[:, k] = False
            free = inside & ~meets.any(-1)
            corners[free, k] = proposal[free]
    return corners


# --- composition -------------------------------------------------------------


def compose(
    bits: np.random.Philox,
    bank: Bank,
    num_scenes: int,
    counts: tuple[int, int],
    canvas: int,
    max_objects: int,
    apart: int | None = None,
    occlude: bool = False,
) -> Examples:
    """Draws scenes whose number of objects is uniform on counts[0]..counts[1].

    Where objects overlap, a pixel belongs to the last one. With `occlude`, the earlier objects
    count as hidden there. Without it, the order of the objects is not visible, and all of them
    count as hidden there.

    Args:
        bits: the random stream.
        bank: the sprites.
        num_scenes: N, the number of scenes.
        counts: the fewest and the most objects in a scene.
        canvas: height and width of a scene.
        max_objects: S, the number of slots for objects.
        apart: the minimum distance between two boxes' corners; see `place`.
        occlude: whether later objects hide earlier ones.

    Returns:
        The scenes.
    """
    _, box, _, channels = bank.sprites.shape
    count, corners = layouts(bits, num_scenes, counts, box, canvas, max_objects, apart)
    objects = integers(bits, len(bank.sprites), (num_scenes, max_objects))

    image = np.zeros((num_scenes, canvas, canvas, channels), np.uint8)
    mask = np.zeros((num_scenes, canvas, canvas), np.uint8)
    owners = np.zeros((num_scenes, canvas, canvas), np.uint8)  # number of objects at a pixel
    centres = np.full((num_scenes, max_objects, 2), -1, np.float32)
    slots = []
    for slot in range(counts[1]):
        scenes = np.flatnonzero(count > slot)
        where = boxes(scenes, corners[scenes, slot], box)
        sprite = bank.sprites[objects[scenes, slot]]
        own = sprite.any(-1)
        image[where] = np.where(own[..., None], 255 * sprite, image[where])
        mask[where] = np.where(own, slot + 1, mask[where])
        owners[where] += own
        centres[scenes, slot] = corners[scenes, slot] + centres_of_mass(own)
        slots.append((scenes, where, own))

    hidden = np.full((num_scenes, max_objects), -1, np.float32)
    for slot, (scenes, where, own) in enumerate(slots):
        covered = mask[where] != slot + 1 if occlude else owners[where] > 1
        hidden[scenes, slot] = (own & covered).sum((1, 2)) / own.sum((1, 2))
    absent = np.arange(max_objects) >= count[:, None]
    locations = np.where(absent[..., None], -1, corners + (box - 1) // 2)
    objects = np.where(absent, -1, objects)
    as_int32 = [a.astype(np.int32) for a in (count, locations, objects)]
    return Examples(image, mask, *as_int32, centres, hidden)


def layouts(bits, num_scenes, counts, box, canvas, max_objects, apart=None):
    """Draws numbers of objects and layouts.

    Args:
        bits: the random stream.
        num_scenes: N, the number of scenes.
        counts: the fewest and the most objects in a scene.
        box: height and width of a box.
        canvas: height and width of a scene.
        max_objects: S, the number of slots for objects.
        apart: the minimum distance between two boxes' corners; see `place`.

    Returns:
        The numbers of objects, [N], and the top left corners of their boxes, [N, S, 2], -1 where
        absent.
    """
    low, high = counts
    count = low + integers(bits, high - low + 1, num_scenes)
    corners = np.full((num_scenes, max_objects, 2), -1, np.int64)
    for n in range(max(low, 1), high + 1):
        scenes = np.flatnonzero(count == n)
        corners[scenes, :n] = place(bits, len(scenes), n, box, canvas, apart)
    return count, corners


def boxes(scenes: np.ndarray, corner: np.ndarray, box: int) -> tuple[np.ndarray, ...]:
    """Makes an index of the pixels of a box in each of several scenes.

    Args:
        scenes: indices of the scenes, [N].
        corner: top left corners of the boxes, [N, 2].
        box: height and width of a box.

    Returns:
        The index of the pixels, [N, box, box], into arrays of scenes [..., H, W].
    """
    row, column = corner.T
    offset = np.arange(box)
    return (
        scenes[:, None, None],
        row[:, None, None] + offset[:, None],
        column[:, None, None] + offset,
    )


def centres_of_mass(weights: np.ndarray) -> np.ndarray:
    """Computes centres of mass.

    Args:
        weights: whole numbers, [K, H, W].

    Returns:
        Rows and columns, [K, 2].
    """
    by_row, by_column = weights.sum(2, dtype=np.int64), weights.sum(1, dtype=np.int64)
    row, column = (sums @ np.arange(sums.shape[1]) for sums in (by_row, by_column))
    return np.stack([row, column], 1) / by_row.sum(1)[:, None]


# --- TFDS --------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True)
class SceneConfig(tfds.core.BuilderConfig):
    """The settings of a scene data set.

    Attributes:
        canvas: height and width of a scene, in pixels.
        patch: height and width of an object's box.
        apart: the minimum distance between two boxes' corners: the larger of their differences in
            rows and in columns. None stands for the box's size, so that boxes do not overlap; 0
            allows any distance. Unless it is None, examples have `centres` and `hidden`.
        min_count, max_count: the fewest and the most objects in a scene of `train` and `test`.
        crowd: objects in every scene of the third split, `test_<crowd>`.
        num_train, num_test, num_crowd: scenes in each split.
        seed: each seed gives a different data set of the same kind.
    """

    canvas: int = 64
    patch: int
    apart: int | None = None
    min_count: int = 0
    max_count: int = 3
    crowd: int = 7
    num_train: int = 190_000
    num_test: int = 10_000
    num_crowd: int = 10_000
    seed: int = 0

    grey = False  # whether pixels have all levels from 0 to 255, instead of only 0 and 255

    @property
    def max_objects(self) -> int:
        """S, the number of slots for objects in an example."""
        return max(self.max_count, self.crowd)

    def validate(self) -> None:
        """Checks the fields.

        Raises:
            ValueError: if a value is out of range, or the objects do not fit on the canvas.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = field.name in ("canvas", "patch", "num_train", "num_test", "num_crowd")
            if isinstance(value, int) and value < least:
                raise ValueError(f"{field.name}={value} must be at least {int(least)}")
        if self.min_count > self.max_count:
            raise ValueError(f"min_count={self.min_count} is above max_count={self.max_count}")
        if self.max_objects > 255:
            raise ValueError(
                f"max_count={self.max_count} and crowd={self.crowd} must be at most 255, since "
                "masks number objects with 8 bits"
            )
        most = capacity(self.patch, self.canvas, self.apart)
        if self.max_objects > most:
            apart = "without overlap" if self.apart is None else f"{self.apart} pixels apart"
            raise ValueError(
                f"{self.max_objects} objects of {self.patch}x{self.patch} do not fit on a "
                f"{self.canvas}x{self.canvas} canvas {apart} (at most {most} do)"
            )


class SceneBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A TFDS builder for scenes. A subclass provides the sprites of a data set."""

    VERSION = tfds.core.Version("1.0.0")
    CHANNELS: int
    ATTRIBUTES: tuple[str, ...]  # each an integer per object, in addition to its location
    OCCLUDE: bool  # whether later objects hide earlier ones where they overlap

    def make_bank(self, dl_manager: tfds.download.DownloadManager | None = None) -> Bank:
        """Makes the sprites.

        Args:
            dl_manager: downloads what is needed; without it, nothing is downloaded.

        Returns:
            The sprites and their attributes.
        """
        raise NotImplementedError

    @functools.cached_property
    def _bank(self) -> Bank:
        return self.make_bank()

    @property
    def split_counts(self) -> dict[str, tuple[int, int]]:
        """The splits, and the fewest and the most objects in their scenes."""
        config = self.builder_config
        few, crowd = (config.min_count, config.max_count), (config.crowd, config.crowd)
        return {"train": few, "test": few, f"test_{config.crowd}": crowd}

    def entropy(self, split: str) -> float | None:
        """Computes the entropy of a split's scenes.

        Args:
            split: its name.

        Returns:
            The entropy in nats; None where it is not known: for more than 4 objects, or objects
            that may overlap.
        """
        if self.builder_config.apart is not None:
            return None
        fewest, most = self.split_counts[split]
        sprites = self._bank.sprites
        return entropy.entropy(sprites, range(fewest, most + 1), self.builder_config.canvas)

    def draw(self, num_scenes: int, seed: int, counts: tuple[int, int] | None = None) -> Examples:
        """Draws scenes that are in no split, without building the data set.

        Args:
            num_scenes: the number of scenes.
            seed: each seed gives different scenes.
            counts: the fewest and the most objects; by default as in `train`.

        Returns:
            The scenes.
        """
        config = self.builder_config
        counts = counts or self.split_counts["train"]
        bits = stream(self.name, config.seed, "draw", seed)
        return self._compose(bits, self._bank, num_scenes, counts)

    def _compose(
        self, bits: np.random.Philox, bank: Bank, num_scenes: int, counts: tuple[int, int]
    ) -> Examples:
        config = self.builder_config
        most = max(config.max_objects, counts[1])
        args = (bits, bank, num_scenes, counts, config.canvas, most)
        return compose(*args, config.apart, self.OCCLUDE)

    def _info(self) -> tfds.core.DatasetInfo:
        config = self.builder_config
        config.validate()
        size, slots = config.canvas, config.max_objects
        overlap = ("centres", "hidden") if config.apart is not None else ()
        shapes = {"centres": (slots, 2), "hidden": (slots,)}

        def tensor(shape, dtype, encoding="none"):
            return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)

        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tensor((size, size, self.CHANNELS), np.uint8, "zlib"),
                    "mask": tensor((size, size), np.uint8, "zlib"),
                    "count": np.int32,
                    "locations": tensor((slots, 2), np.int32),
                    **{name: tensor((slots,), np.int32) for name in self.ATTRIBUTES},
                    **{name: tensor(shapes[name], np.float32) for name in overlap},
                }
            ),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        bank = self.make_bank(dl_manager)
        config = self.builder_config
        sizes = (config.num_train, config.num_test, config.num_crowd)
        return {
            split: self._generate_examples(bank, split, size, counts)
            for (split, counts), size in zip(self.split_counts.items(), sizes, strict=True)
        }

    def _generate_examples(
        self, bank: Bank, split: str, num_scenes: int, counts: tuple[int, int]
    ) -> Iterator[tuple[int, dict]]:
        config = self.builder_config
        with tqdm.tqdm(total=num_scenes, desc=f"{self.name}/{config.name} {split}") as bar:
            for start in range(0, num_scenes, CHUNK):
                examples = self._compose(
                    stream(self.name, config.seed, split, start // CHUNK),
                    bank,
                    min(CHUNK, num_scenes - start),
                    counts,
                )
                one_by_one = _one_by_one(examples, bank, tuple(self.info.features))
                yield from enumerate(one_by_one, start=start)
                bar.update(len(examples.count))

    def _log_download_bytes(self) -> None:
        """Replaces TFDS's message about a download, since these data are generated."""
        print(f"generating {self.info.full_name} in {self.data_dir_root}", file=sys.stderr)

    def _log_download_done(self) -> None:
        """Suppresses TFDS's message about a finished download; the progress bars suffice."""


def _one_by_one(examples: Examples, bank: Bank, features: tuple[str, ...]) -> Iterator[dict]:
    """Yields each example in the form that TFDS expects, with its objects' attributes."""
    present = examples.objects >= 0
    attributes = {
        name: np.where(present, values[examples.objects], -1).astype(np.int32)
        for name, values in bank.attributes.items()
    }
    values = {**examples._asdict(), **attributes}
    for i in range(len(examples.count)):
        yield {name: values[name][i] for name in features}
