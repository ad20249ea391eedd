"""Preprocessing of raw images into what a model sees: bright objects on a black canvas.

The result is a binary image of the same size or, for grey levels, one of normalised contrast that
is zoomed to a common size of objects (see `normalisation`). Preprocessing belongs to a model. It is
chosen when the model is trained, stored in the config that is saved with its weights, and applied
to raw images wherever the model is used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lavae_jax import normalisation
from lavae_jax.errors import UserError

GREY = np.array([[0.299], [0.587], [0.114]], np.float32)  # weights of red, green and blue
SIGNIFICANT = 6.0  # standard deviations above the background; pixels above belong to an object
CLIPPED = 4.0  # standard deviations above the background; pixels above do not belong to it
LEAST_NOISE = 1 / 255  # the smallest standard deviation of a background
BRIGHT = 0.9  # the brightness of objects is this quantile of their pixels
MOSTLY_FOREGROUND = 0.5  # share of foreground above which an image is probably inverted


class ImageError(UserError, ValueError):
    """An image or a collection of images cannot be used; the message says why."""


class ImageTypeError(ImageError, TypeError):
    """Pixels have a type whose range is not known."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How raw images become the images that a model is trained on.

    A binary image passes through unchanged, except for `invert`.

    Attributes:
        channels: C, of the model's images, 1 or 3. If 1, colours are converted to grey.
        invert: whether objects are dark on a bright background.
        threshold: pixels above it, on a scale from 0 to 1, are foreground. "auto" finds one for
            each image (see `auto_threshold`). "stochastic" makes a pixel foreground with a
            probability equal to its value, sampled independently each time; this is for training.
        levels: "binary", or "grey": normalised and zoomed, without a threshold.
        diameter: the diameter of a typical object of the collection, in pixels of raw images.
            Required for grey levels, where it complements the estimate from each image.
    """

    channels: int
    invert: bool = False
    threshold: float | Literal["auto", "stochastic"] = "auto"
    levels: Literal["binary", "grey"] = "binary"
    diameter: float | None = None

    def __post_init__(self) -> None:
        if self.levels not in ("binary", "grey"):
            raise ImageError(f"levels={self.levels!r} must be 'binary' or 'grey'")
        if self.levels == "grey" and not (self.diameter and self.diameter > 0):
            raise ImageError(
                f"diameter={self.diameter} must be above 0 if levels='grey': the usual diameter of "
                "an object, in pixels"
            )
        if self.channels not in (1, 3):
            raise ImageError(f"channels={self.channels} must be 1 or 3")
        if not isinstance(self.threshold, str):
            if not 0 <= self.threshold < 1:  # refuses nan, too
                raise ImageError(f"threshold={self.threshold} must be at least 0 and below 1")
        elif self.threshold not in ("auto", "stochastic"):
            raise ImageError(
                f"threshold={self.threshold!r} must be a number from 0 to 1, 'auto' or 'stochastic'"
            )

    def grey(self, image: np.ndarray, name: str = "an image") -> np.ndarray:
        """Converts an image to levels from 0 to 1 with bright objects.

        Args:
            image: [H, W] or [H, W, 1 or 3], of a type that `as_levels` accepts.
            name: the image's name, for error messages.

        Returns:
            Levels, [H, W, channels] float32.

        Raises:
            ImageError: if the image cannot be used, or is grey and the model has 3 channels.
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
        """Binarises an image.

        Args:
            grey: levels from `grey`, [H, W, channels].
            random: the generator for a stochastic threshold; if None, that threshold is one half.

        Returns:
            0 or 1, [H, W, channels] float32.
        """
        threshold: Any = self.threshold  # becomes a number, or an array of them
        if is_binary(grey):
            return grey.astype(np.float32)
        if threshold == "stochastic":
            threshold = 0.5 if random is None else random.random(grey.shape, np.float32)
        elif threshold == "auto":
            threshold = auto_threshold(grey)
        return (grey > threshold).astype(np.float32)

    def corrected(self, grey: np.ndarray) -> np.ndarray:
        """Makes the background of an image black.

        Args:
            grey: levels [H, W, channels], from `grey`.

        Returns:
            [H, W, channels], float32 from 0 to 1: binary, or with normalised levels.
        """
        return normalisation.normalise(grey) if self.levels == "grey" else self.foreground(grey)

    def zoomed(self, corrected: np.ndarray) -> np.ndarray:
        """Zooms normalised levels so that the usual object has the standard size.

        Args:
            corrected: an image [H, W, channels] from `corrected`; a binary one is not zoomed.

        Returns:
            [H', W', channels], float32 from 0 to 1.
        """
        if self.diameter is None or self.levels == "binary":  # grey levels have a diameter
            return corrected
        found = normalisation.diameters(corrected)
        usual = normalisation.usual_diameter(found, self.diameter)
        return normalisation.resize(corrected, normalisation.zoomed(corrected.shape[:2], usual))

    def seen(self, grey: np.ndarray) -> np.ndarray:
        """Converts levels to what the model sees.

        Args:
            grey: levels [H, W, channels], from `grey`.

        Returns:
            [H', W', channels], float32 from 0 to 1. Only grey levels are zoomed.
        """
        return self.zoomed(self.corrected(grey))

    def __call__(self, image: np.ndarray, name: str = "an image") -> np.ndarray:
        """Converts a raw image into what the model sees.

        Args:
            image: [H, W] or [H, W, 1 or 3], of a type that `as_levels` accepts.
            name: the image's name, for error messages.

        Returns:
            [H, W, channels] float32 from 0 to 1, of another height and width for grey levels.

        Raises:
            ImageError: if the image cannot be used.
        """
        return self.seen(self.grey(image, name))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Preprocessing":
        """Reads the preprocessing of a trained model from its run's config.

        Models of custom images have a number as their threshold. Models of scene data sets, which
        are binary, have none; a threshold is then found for each image that is not binary.

        Args:
            config: the config of the run.

        Returns:
            The preprocessing.
        """
        dataset = config.get("dataset", {})
        threshold = dataset.get("threshold", "auto")
        if threshold == "stochastic":
            threshold = 0.5
        elif threshold not in ("auto", "otsu"):  # training replaces otsu by a number
            threshold = float(threshold)
        channels, invert = config["model"]["channels"], bool(dataset.get("invert", False))
        if dataset.get("levels", "binary") == "grey":
            return cls(channels, invert, levels="grey", diameter=float(dataset["diameter"]))
        return cls(channels, invert, threshold)


def as_levels(image: np.ndarray, name: str = "an image") -> np.ndarray:
    """Converts an image of any type to levels from 0 to 1.

    Args:
        image: [H, W] or [H, W, 1 or 3]: bool, uint8 (0 to 255), uint16 (0 to 65535) or float (0 to
            1). Whole numbers of any type that are all 0 or 1 are taken for a binary image.
        name: the image's name, for error messages.

    Returns:
        Levels, [H, W, C] float32.

    Raises:
        ImageError: if the shape or the range of values is not one of these.
        ImageTypeError: if the type is not one of these.
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
    """Checks whether all levels are 0 or `high`.

    Args:
        levels: [...].
        high: the level of foreground.

    Returns:
        Whether they are.
    """
    return bool(((levels == 0) | (levels == high)).all())


def auto_threshold(grey: np.ndarray) -> np.ndarray:
    """Finds a threshold halfway between the background and the objects of an image.

    At least half of the pixels must be background. A pixel belongs to an object if it is more than
    6 standard deviations above the mean of the background. A channel without such pixels has no
    foreground.

    Args:
        grey: levels, [H, W, C].

    Returns:
        A threshold for each channel, [C].
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

    The background is all values at most 4 deviations above its mean, starting from the lower half.
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
