"""Custom images as training data: crops of one size, and settings estimated from them.

Every step cuts out new crops. An object that the border of a crop cuts is learned as its visible
part, located at the centre of that part. In whole images, only objects at the image's own border
are cut.
"""

import copy
import functools
from typing import NamedTuple

import numpy as np
import tqdm
from ml_collections import ConfigDict

from lavae_jax import normalisation
from lavae_jax.arrays import Integers
from lavae_jax.images import Images, open_images
from lavae_jax.input_pipeline import Batch
from lavae_jax.normalisation import Components
from lavae_jax.preprocessing import MOSTLY_FOREGROUND, ImageError, Preprocessing, is_binary

KEPT_BYTES = 2 << 30  # decoded images that are cached in memory; others are read again each time
SAMPLED_IMAGES = 500  # thresholds and sizes are estimated from at most this many images
SIZED_IMAGES = 100  # the usual size of grey objects is estimated from at most this many images
FEW_IMAGES = 20  # at most this many images are examined to decide whether all are grey
FEW_OBJECTS = 3  # an image with fewer objects does not show their usual size
SPECK = 2  # components of at most this many pixels are too small for objects
SKIP = ". (config.dataset.unreadable='skip' skips such files)"
LEVELS = 65_535


# --- preprocessing -----------------------------------------------------------


def make_preprocessing(
    images: Images, channels: int, invert: bool, threshold: str, skip_unreadable: bool = False
) -> Preprocessing:
    """Makes the preprocessing of binary images that training settings describe.

    Args:
        images: the images from which a threshold is estimated.
        channels: the number of channels of the model's images.
        invert: whether objects are dark.
        threshold: a number from 0 to 1, `otsu` (one for all images), or `stochastic`.
        skip_unreadable: whether to skip files that cannot be read.

    Returns:
        The preprocessing.

    Raises:
        ImageError: if the threshold is invalid, or cannot be estimated.
    """
    if threshold == "stochastic":
        return Preprocessing(channels, invert, "stochastic")
    if threshold == "otsu":
        number = _otsu_threshold(images, Preprocessing(channels, invert), skip_unreadable)
        return Preprocessing(channels, invert, number)
    try:
        number = float(threshold)
    except ValueError:
        number = float("nan")
    if not 0 <= number < 1:
        raise ImageError(
            f"threshold={threshold!r} must be a number of at least 0 and below 1, 'otsu' or "
            "'stochastic'"
        )
    return Preprocessing(channels, invert, number)


def make_grey(
    images: Images, channels: int, invert: bool, diameter: str, skip_unreadable: bool = False
) -> Preprocessing:
    """Makes the preprocessing of grey levels.

    Args:
        images: the images from which the usual diameter is estimated.
        channels: the number of channels of the model's images.
        invert: whether objects are dark.
        diameter: the usual diameter of objects in pixels: a number, or `auto` to estimate it from
            images.
        skip_unreadable: whether to skip files that cannot be read.

    Returns:
        The preprocessing.

    Raises:
        ImageError: if the diameter is invalid, or cannot be estimated.
    """
    if diameter == "auto":
        raw = Preprocessing(channels, invert)
        number = usual_diameter(components(images, raw, skip_unreadable))
        return Preprocessing(channels, invert, levels="grey", diameter=number)
    try:
        number = float(diameter)
    except ValueError:
        number = float("nan")
    if not 1 <= number < 10_000:
        raise ImageError(
            f"diameter={diameter!r} must be at least 1 and below 10,000 (pixels), or 'auto'"
        )
    return Preprocessing(channels, invert, levels="grey", diameter=number)


def components(
    images: Images, preprocessing: Preprocessing, skip_unreadable: bool = False
) -> list[Components]:
    """Finds the connected components of up to `SIZED_IMAGES` images, after normalisation.

    Args:
        images: the images.
        preprocessing: makes grey levels of them.
        skip_unreadable: whether to skip files that cannot be read.

    Returns:
        The components of each image, in raw pixels.

    Raises:
        ImageError: if an image cannot be read and is not to be skipped.
    """
    found = []
    for i in tqdm.tqdm(_evenly(len(images), SIZED_IMAGES), desc="measuring objects", delay=3.0):
        try:
            grey = preprocessing.grey(images[i], images.names[i])
        except ImageError as error:
            if not skip_unreadable:
                raise ImageError(f"{error}{SKIP}") from error
            continue
        found.append(normalisation.components(normalisation.normalise(grey)))
    return found


def usual_diameter(found: list[Components]) -> float:
    """Computes the usual diameter of objects: the median over images of each image's median.

    Images with few objects are ignored unless all images have few.

    Args:
        found: the components of each image.

    Returns:
        The diameter in pixels.

    Raises:
        ImageError: if there are no objects.
    """
    sizes = [one.objects for one in found]
    several = [one for one in sizes if len(one) >= FEW_OBJECTS]
    medians = [np.median(one) for one in several or sizes if len(one)]
    if not medians:
        raise ImageError(
            "no image shows anything that could be an object. If objects are dark on a bright "
            "background, invert the images (config.dataset.invert=True, --invert); otherwise, set "
            "the diameter of objects (config.dataset.diameter)"
        )
    return round(float(np.median(medians)), 2)


def suits_grey(images: Images, preprocessing: Preprocessing) -> bool:
    """Decides whether images should be preprocessed as grey levels.

    Args:
        images: the images, a few of which are examined.
        preprocessing: makes grey levels of them.

    Returns:
        Whether they are grey and most of their components are solid, unlike strokes.
    """
    some = [
        preprocessing.grey(images[i], images.names[i]) for i in _evenly(len(images), FEW_IMAGES)
    ]
    if all(is_binary(grey) for grey in some):
        return False
    found = [normalisation.components(normalisation.normalise(grey)) for grey in some]
    solid = np.concatenate([one.is_solid for one in found])
    return len(solid) > 0 and bool(solid.mean() > 0.5)


def _otsu_threshold(images: Images, preprocessing: Preprocessing, skip_unreadable: bool) -> float:
    import skimage.filters

    sample: dict[int, int] = {}  # the number of pixels by level
    for i in _evenly(len(images)):
        try:
            grey = preprocessing.grey(images[i], images.names[i])
        except ImageError as error:
            if not skip_unreadable:
                raise ImageError(f"{error}{SKIP}") from error
            continue
        levels, numbers = np.unique(np.rint(grey * LEVELS).astype(int), return_counts=True)
        for level, number in zip(levels.tolist(), numbers.tolist(), strict=True):
            sample[level] = sample.get(level, 0) + number
    if len(sample) < 2:
        value = next(iter(sample)) / LEVELS if sample else 0.0
        raise ImageError(f"every pixel of these images has the same value, {value:.3g}")
    low, high = min(sample) / LEVELS, max(sample) / LEVELS
    histogram, edges = np.histogram(
        np.array(list(sample)) / LEVELS, 256, (low, high), weights=np.array(list(sample.values()))
    )
    middles = (edges[:-1] + edges[1:]) / 2
    found = skimage.filters.threshold_otsu(hist=(histogram, middles))
    there = middles[histogram > 0]
    # Otsu's method does not distinguish thresholds between two neighbouring levels.
    return float(there[there <= found].max() + there[there > found].min()) / 2


def _evenly(length: int, most: int = SAMPLED_IMAGES) -> list[int]:
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(int)).tolist()


class Crops:
    """Images after preprocessing, as canvases of one size: a source of batches.

    The index of a draw determines which part of an image a canvas shows and, with a stochastic
    threshold, which pixels are foreground. Without such indices, both are always the same. Images
    smaller than the canvas are padded with black below and to the right.

    Args:
        images: the images.
        preprocessing: converts them to model inputs.
        canvas: height and width of a canvas.
        seed: the seed of the random crops.
        skip_unreadable: whether to skip files that cannot be read.
        with_counts: whether examples have `count`, where it is known.

    Attributes:
        counts: the number of objects in each of `images`, if known and `with_counts`.
        skipped: the reason for each image that was skipped.
        shapes: height and width of each image.

    Raises:
        ImageError: if an image cannot be read and is not to be skipped, or none can.
    """

    def __init__(
        self,
        images: Images,
        preprocessing: Preprocessing,
        canvas: tuple[int, int],
        seed: int = 0,
        skip_unreadable: bool = False,
        with_counts: bool = False,
    ):
        self.preprocessing, self.canvas, self.seed = preprocessing, canvas, seed
        self.counts = images.counts if with_counts else None
        self.skipped: list[str] = []
        self.shapes: list[tuple[int, int]] = []
        self._images, self._number, self._kept = images, [], []
        room = KEPT_BYTES
        for i in tqdm.tqdm(range(len(images)), desc="reading images", mininterval=1.0, delay=3.0):
            try:
                image = preprocessing.grey(images[i], images.names[i])
            except ImageError as error:
                if not skip_unreadable:
                    raise ImageError(f"{error}{SKIP}") from error
                self.skipped.append(str(error))
                continue
            image = self._prepared(image)
            room -= image.nbytes
            self.shapes.append(image.shape[:2])
            self._number.append(i)
            self._kept.append(image if room > 0 else None)
        if not self._number:
            raise ImageError(f"no image can be read; the first: {self.skipped[0]}")
        self._tallest, self._widest = np.max(self.shapes, axis=0).tolist()

    def with_canvas(self, canvas: tuple[int, int]) -> "Crops":
        """Makes canvases of another size from the same images, which are not read again.

        Args:
            canvas: height and width.

        Returns:
            The new source.
        """
        other = copy.copy(self)
        other.canvas = canvas
        return other

    @property
    def whole(self) -> bool:
        """Whether no image is larger than the canvas."""
        return self._tallest <= self.canvas[0] and self._widest <= self.canvas[1]

    @functools.cached_property
    def names(self) -> list[str]:
        """Names the images.

        Returns:
            The name of each example's image.
        """
        return [self._images.names[i] for i in self._number]

    @property
    def varies(self) -> bool:
        """Whether an example differs from one draw to the next."""
        return not self.whole or self.preprocessing.threshold == "stochastic"

    def __len__(self) -> int:
        return len(self._number)

    def read(self, index: Integers, draws: Integers | None = None) -> Batch:
        """Reads examples.

        Args:
            index: the indices of the examples.
            draws: the position of each example in the sequence of all examples that training draws;
                by default, the example's own index.

        Returns:
            `image`, [B, H, W, C], and `count`, [B], if it is known and the canvas shows whole
            images.
        """
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
            image = self._prepared(
                self.preprocessing.grey(self._images[number], self._images.names[number])
            )
        height, width, channels = image.shape
        top = int(random.integers(max(height - self.canvas[0], 0) + 1))
        left = int(random.integers(max(width - self.canvas[1], 0) + 1))
        part = image[top : top + self.canvas[0], left : left + self.canvas[1]]
        part = part.astype(np.float32) / 255 if part.dtype == np.uint8 else part
        canvas = np.zeros((*self.canvas, channels), np.float32)
        if self.preprocessing.levels == "binary":
            part = self.preprocessing.foreground(part, random)
        canvas[: part.shape[0], : part.shape[1]] = part
        return canvas

    def _prepared(self, grey):
        """The part of preprocessing that is done once: all of it, or what precedes a threshold."""
        is_grey = self.preprocessing.levels == "grey"
        return self.preprocessing.seen(grey) if is_grey else _as_bytes(grey)


def _as_bytes(image):
    """The same levels as bytes, which take a quarter of the memory, if that is exact."""
    levels = image * 255
    is_same = np.abs(levels - np.rint(levels)).max(initial=0) < 1e-3
    return np.rint(levels).astype(np.uint8) if is_same else image


# --- from a run's config -----------------------------------------------------


def open_crops(config: ConfigDict) -> Crops:
    """Opens the custom images that a run is trained on.

    Args:
        config: the run's config, whose data set is `images`.

    Returns:
        The source of training and held-out examples.

    Raises:
        ImageError: if a setting is invalid, or the images cannot be used.
    """
    dataset, channels = config.dataset, config.model.channels
    if dataset.canvas < 1:
        raise ImageError(f"config.dataset.canvas={dataset.canvas} must be at least 1")
    if dataset.unreadable not in ("refuse", "skip"):
        raise ImageError(
            f"config.dataset.unreadable={dataset.unreadable!r}: expected 'refuse' or 'skip'"
        )
    images = open_images(dataset.path, dataset.member, dataset.data_dir or None)
    skip = dataset.unreadable == "skip"
    preprocessing = _preprocessing(dataset, images, channels)
    canvas = (dataset.canvas, dataset.canvas)
    return Crops(images, preprocessing, canvas, config.seed, skip, with_counts=True)


def settle(config: ConfigDict) -> None:
    """Replaces estimated settings in a config by numbers, and adds a fingerprint of the images.

    Otsu's threshold and the usual diameter of grey objects become part of the trained model. The
    fingerprint prevents a run from being resumed with other images.

    Args:
        config: changed in place.

    Raises:
        ImageError: if a setting is invalid, or the images cannot be used.
    """
    dataset = config.dataset
    images = open_images(dataset.path, dataset.member, dataset.data_dir or None)
    dataset.images = f"{len(images)} (content {images.fingerprint})"
    if dataset.get("levels", "binary") == "grey":
        if dataset.diameter == "auto":
            made = _preprocessing(dataset, images, config.model.channels)
            dataset.diameter = f"{made.diameter:g}"
    elif dataset.threshold == "otsu":
        made = _preprocessing(dataset, images, config.model.channels)
        dataset.threshold = f"{made.threshold:.6f}"


def _preprocessing(dataset: ConfigDict, images: Images, channels: int) -> Preprocessing:
    skip = dataset.unreadable == "skip"
    if dataset.get("levels", "binary") == "grey":
        return make_grey(images, channels, dataset.invert, dataset.diameter, skip)
    return make_preprocessing(images, channels, dataset.invert, dataset.threshold, skip)


def held_out(wanted: float, images: int) -> int:
    """Computes the number of images to hold out.

    Args:
        wanted: if below 1, a share of the images (at least one of them); otherwise their number.
        images: the number of all images.

    Returns:
        The number of held-out images.

    Raises:
        ImageError: if none or all images would be held out.
    """
    number = max(1, round(wanted * images)) if 0 < wanted < 1 else int(wanted)
    if not 0 < number < images:
        raise ImageError(
            f"config.dataset.held_out={wanted:g} of {images} images leaves none for training, or "
            "none for evaluation; set another number, or cut a single large image into several"
        )
    return number


# --- objects and settings ----------------------------------------------------


class Parts(NamedTuple):
    """The connected components of some crops: objects, if these do not touch.

    Attributes:
        side: the longer side of each component's bounding box, [n].
        count: the number of components in each crop.
        foreground: the share of pixels that are foreground.
    """

    side: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # hides tuple.count
    foreground: float


def parts(crops: Crops, most: int = SAMPLED_IMAGES) -> Parts:
    """Finds the connected components of crops. Specks of a pixel or two do not count.

    Args:
        crops: the crops.
        most: the largest number of crops to examine, spread evenly over all images.

    Returns:
        The components.
    """
    import skimage.measure

    sides, counts, foreground = [], [], []
    for i in _evenly(len(crops), most):
        image = crops.read([i])["image"][0]
        is_grey = crops.preprocessing.levels == "grey"
        image = normalisation.foreground(image) if is_grey else image.max(-1) > 0
        regions = skimage.measure.regionprops(skimage.measure.label(image))
        boxes = [r.bbox for r in regions if r.area > SPECK]
        sides += [max(bottom - top, right - left) for top, left, bottom, right in boxes]
        counts.append(len(boxes))
        height, width = np.minimum(crops.shapes[i], crops.canvas)
        foreground.append(image[:height, :width].mean())
    return Parts(np.array(sides, int), np.array(counts, int), float(np.mean(foreground)))


def check_foreground(share: float, preprocessing: Preprocessing) -> None:
    """Checks that images are neither black nor mostly foreground.

    Args:
        share: the share of pixels that are foreground.
        preprocessing: for the message.

    Raises:
        ImageError: if they are.
    """
    value = preprocessing.threshold
    threshold = value if isinstance(value, str) else f"{value:.3g}"
    if share == 0:
        raise ImageError(
            f"every pixel is black (threshold {threshold}). Objects must be bright: invert dark "
            "ones (config.dataset.invert=True, --invert), or set the threshold"
        )
    if share > MOSTLY_FOREGROUND:
        raise ImageError(
            f"{share:.0%} of the pixels are foreground (threshold {threshold}), but objects are "
            "bright on black: invert dark ones (config.dataset.invert=True, --invert), or set the "
            "threshold"
        )


def check(crops: Crops, sprite_size: int, max_objects: int) -> list[str]:
    """Checks whether a model can learn from crops.

    Args:
        crops: the training data.
        sprite_size: h and w.
        max_objects: M.

    Returns:
        Warnings, one line each.

    Raises:
        ImageError: if the crops cannot be used.
    """
    found = parts(crops)
    check_foreground(found.foreground, crops.preprocessing)
    if min(crops.canvas) < sprite_size:
        raise ImageError(
            f"a canvas of {crops.canvas[0]}x{crops.canvas[1]} is smaller than a sprite of "
            f"{sprite_size}; set config.dataset.canvas or config.model.sprite_size"
        )
    said = [f"skipped: {reason}" for reason in crops.skipped]
    if crops.preprocessing.levels == "grey":  # sizes are normalised, and components may be clumps
        return said
    for name, (height, width) in zip(crops.names, crops.shapes, strict=True):
        if min(height, width) < sprite_size:
            raise ImageError(
                f"{name} ({height}x{width} pixels) is smaller than a sprite ({sprite_size}x"
                f"{sprite_size}); remove such images, or set config.model.sprite_size"
            )
    if crops.counts is not None and not crops.whole:
        said.append(
            "count accuracy is not shown, since counts are those of whole images, but canvases "
            "show parts of images; to see it, set config.dataset.canvas to the size of the images"
        )
    if len(found.side) and np.quantile(found.side, 0.95) > sprite_size:
        said.append(
            f"at least 5 % of the connected components are {int(np.quantile(found.side, 0.95))} "
            f"pixels or longer, but config.model.sprite_size={sprite_size}; `lavae show` proposes "
            "a size"
        )
    if (found.count > max_objects).mean() > 0.01:
        said.append(
            f"canvases have up to {found.count.max()} connected components, but "
            f"config.model.max_objects={max_objects}; increase it, or choose a smaller canvas"
        )
    return said


class Proposal(NamedTuple):
    """Proposed settings.

    Attributes:
        sprite_size: h and w.
        canvas: height and width of a canvas.
        max_objects: M.
    """

    sprite_size: int
    canvas: int
    max_objects: int


def propose(found: Parts, image_side: int) -> Proposal:
    """Proposes settings for what was found in whole images or large crops of them.

    The size of a sprite is odd and, for 99 % of the components, leaves a margin of one pixel on
    either side. A canvas has room for four sprites in a row, and at least 64 pixels unless the
    images are smaller.

    Args:
        found: the components of the images.
        image_side: side of the images, in pixels.

    Returns:
        The settings.

    Raises:
        ImageError: if no component is large enough for an object.
    """
    if not len(found.side):
        raise ImageError("these images contain nothing but specks; try another threshold")
    largest = int(np.ceil(np.quantile(found.side, 0.99)))
    sprite = max(5, (largest + 2) | 1)
    canvas = min(max(64, -(-4 * sprite // 16) * 16), -(-image_side // 4) * 4)
    most = int(np.quantile(found.count, 0.999)) if len(found.count) else 0
    return Proposal(sprite, canvas, max(10, -(-most * 5 // 4)))
