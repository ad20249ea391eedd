"""From an image as it was taken to what a model sees: bright objects on a black canvas.

That is a binary image of the same size or, for grey levels, one of normalised contrast that is
zoomed to the usual size of objects (see `normalisation`). Preprocessing belongs to a model. It is
chosen when the model is trained, stored in the config that is saved with its weights, and applied
to raw images wherever the model is used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lavae_jax import normalisation
from lavae_jax.errors import UserError

GREY = np.array([[0.299], [0.587], [0.114]], np.float32)  # of red, green and blue
SIGNIFICANT = 6.0  # deviations of the background, above which a pixel belongs to an object
CLIPPED = 4.0  # deviations of the background, above which a pixel does not belong to it
LEAST_NOISE = 1 / 255  # the least deviation of a background
BRIGHT = 0.9  # the quantile of objects' pixels that stands for their brightness
MOSTLY_FOREGROUND = 0.5  # the share of the pixels above which objects are probably inverted


class ImageError(UserError, ValueError):
    """An image or a collection of images cannot be used; the message says why."""


class ImageTypeError(ImageError, TypeError):
    """Pixels have a type whose range is not known."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How raw images become the images that a model is trained on.

    An image that is binary already passes through unchanged, but for `invert`.

    Attributes:
        channels: of the model's images, 1 or 3. Colours become grey where it is 1.
        invert: whether objects are dark on a bright background.
        threshold: pixels above it, on a scale from 0 to 1, are foreground. "auto" finds one for
            each image (see `auto_threshold`). "stochastic" makes a pixel foreground with its
            value for a probability, anew at each draw; this is for training.
        levels: "binary", or "grey": normalised and zoomed, without a threshold.
        diameter: of the usual object of the collection, in pixels of raw images. Grey levels have
            one; it stands in where an image shows too few objects to tell.
    """

    channels: int
    invert: bool = False
    threshold: float | Literal["auto", "stochastic"] = "auto"
    levels: Literal["binary", "grey"] = "binary"
    diameter: float | None = None

    def __post_init__(self):
        if self.levels not in ("binary", "grey"):
            raise ImageError(f"levels={self.levels!r} must be 'binary' or 'grey'")
        if self.levels == "grey" and not (self.diameter and self.diameter > 0):
            raise ImageError(f"diameter={self.diameter}: grey levels need that of the usual object")
        if self.channels not in (1, 3):
            raise ImageError(f"channels={self.channels} must be 1 or 3")
        is_number = not isinstance(self.threshold, str)
        if is_number and not 0 <= self.threshold < 1:  # nan is neither
            raise ImageError(f"threshold={self.threshold} must be at least 0 and below 1")
        if not is_number and self.threshold not in ("auto", "stochastic"):
            raise ImageError(
                f"threshold={self.threshold!r} must be a number from 0 to 1, 'auto' or 'stochastic'"
            )

    def grey(self, image: np.ndarray, name: str = "an image") -> np.ndarray:
        """Levels from 0 to 1 with bright objects.

        Args:
            image: [H, W] or [H, W, 1 or 3], of a type that `as_levels` accepts.
            name: of the image, for error messages.

        Returns:
            [H, W, channels], float32.
        """
        levels = as_levels(image, name)
        if levels.shape[-1] == 3 and self.channels == 1:
            levels = levels @ GREY
        if levels.shape[-1] != self.channels:
            raise ImageError(
                f"{name} has {levels.shape[-1]} channel, and the model has {self.channels} (to "
                f"train on such images, set config.model.channels={levels.shape[-1]})"
            )
        return 1 - levels if self.invert else levels

    def foreground(self, grey: np.ndarray, random: np.random.Generator | None = None) -> np.ndarray:
        """The binary image that a model sees.

        Args:
            grey: levels [H, W, channels], from `grey`.
            random: for a stochastic threshold; without it, that is one half.

        Returns:
            [H, W, channels], float32, 0 or 1.
        """
        threshold = self.threshold
        if is_binary(grey):
            return grey.astype(np.float32)
        if threshold == "stochastic":
            drawn = random is not None
            threshold = random.random(grey.shape, np.float32) if drawn else 0.5
        elif threshold == "auto":
            threshold = auto_threshold(grey)
        return (grey > threshold).astype(np.float32)

    def normalised(self, grey: np.ndarray) -> np.ndarray:
        """The grey image that a model sees: without background, and zoomed.

        Args:
            grey: levels [H, W, channels], from `grey`.

        Returns:
            [H', W', channels], float32 from 0 to 1.
        """
        levels = normalisation.normalise(grey)
        usual = normalisation.usual_diameter(normalisation.diameters(levels), self.diameter)
        return normalisation.resize(levels, normalisation.zoomed(grey.shape[:2], usual))

    def seen(self, grey: np.ndarray) -> np.ndarray:
        """What the model sees of levels [H, W, channels] from `grey`: binary or normalised."""
        return self.normalised(grey) if self.levels == "grey" else self.foreground(grey)

    def __call__(self, image: np.ndarray, name: str = "an image") -> np.ndarray:
        """What the model sees of a raw image: [H, W, channels], float32 from 0 to 1.

        Of grey levels, height and width are not those of the raw image.
        """
        return self.seen(self.grey(image, name))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Preprocessing":
        """The preprocessing of a trained model, from its run's config.

        Models of custom images have a number for a threshold. Those of scene data sets, which are
        binary, have none: they find one for each image that is not.
        """
        dataset = config.get("dataset", {})
        threshold = dataset.get("threshold", "auto")
        if threshold == "stochastic":
            threshold = 0.5
        elif threshold not in ("auto", "otsu"):  # a trained model has a number for otsu
            threshold = float(threshold)
        channels, invert = config["model"]["channels"], bool(dataset.get("invert", False))
        if dataset.get("levels", "binary") == "grey":
            return cls(channels, invert, levels="grey", diameter=float(dataset["diameter"]))
        return cls(channels, invert, threshold)


def as_levels(image: np.ndarray, name: str = "an image") -> np.ndarray:
    """Any image as float32 levels from 0 to 1, [H, W, C].

    Args:
        image: [H, W] or [H, W, 1 or 3]: bool, uint8 (0 to 255), uint16 (0 to 65535) or float (0
            to 1). Whole numbers of any type that are all 0 or 1 are taken for a binary image.
        name: of the image, for error messages.
    """
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[-1] not in (1, 3) or 0 in image.shape:
        raise ImageError(f"{name} has shape {image.shape}; expected [H, W], [H, W, 1] or [H, W, 3]")
    if image.dtype == bool:
        return image.astype(np.float32)
    if image.dtype.kind not in "uif":
        raise ImageTypeError(f"{name} is of type {image.dtype}; {_EXPECTED}")
    low, high = float(image.min()), float(image.max())
    if low >= 0 and high <= 1:
        return image.astype(np.float32)
    if image.dtype in _HIGHEST:
        return image.astype(np.float32) / _HIGHEST[image.dtype]
    if image.dtype.kind != "f":
        raise ImageTypeError(f"{name} is of type {image.dtype}; {_EXPECTED}")
    raise ImageError(
        f"{name} is of type {image.dtype} and ranges from {low:g} to {high:g}; {_EXPECTED}"
    )


_HIGHEST = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65_535}
_EXPECTED = (
    "expected uint8 (0 to 255), uint16 (0 to 65535), float (0 to 1), bool, or whole numbers that "
    "are all 0 or 1"
)


def is_binary(levels: np.ndarray, high: float = 1) -> bool:
    """Whether all levels are 0 or `high`."""
    return bool(((levels == 0) | (levels == high)).all())


def auto_threshold(grey: np.ndarray) -> np.ndarray:
    """A threshold [C] halfway between the background and the objects of an image [H, W, C].

    At least half of the pixels must be background. A pixel belongs to an object if it is more than
    6 standard deviations of the background above its mean. A channel without such pixels has no
    foreground.
    """
    thresholds = []
    for values in np.sort(grey.reshape(-1, grey.shape[-1]), axis=0).T.astype(np.float64):
        mean, deviation = _background(values)
        objects = values[np.searchsorted(values, mean + SIGNIFICANT * deviation, "right") :]
        bright = np.quantile(objects, BRIGHT) if len(objects) else 2 - mean
        thresholds.append((mean + bright) / 2)
    return np.array(thresholds, np.float32)


def _background(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the background among sorted values, by sigma clipping.

    The background is what is at most 4 deviations above its mean, beginning with the lower half.
    """
    first, second = np.cumsum(values), np.cumsum(values**2)
    size = (len(values) + 1) // 2
    while True:
        mean = first[size - 1] / size
        variance = max(second[size - 1] / size - mean**2, 0.0)
        deviation = max(np.sqrt(variance), LEAST_NOISE)
        grown = int(np.searchsorted(values, mean + CLIPPED * deviation, "right"))
        if grown <= size:
            return float(mean), float(deviation)
        size = grown
