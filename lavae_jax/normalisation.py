"""Grey images as a model sees them: no background, one contrast, and one size of objects.

    levels = normalise(grey)                       the usual object has a brightness of one half
    found = diameters(levels)                      of what is probably one object each
    resize(levels, zoomed(shape, usual, of))       the usual object is STANDARD pixels wide

All of it is estimated from the image itself. Where an image shows too few objects to tell their
size, that of the whole collection stands in.
"""

from typing import NamedTuple

import numpy as np
import scipy.ndimage
from PIL import Image

STANDARD = 12.0  # pixels: the diameter of the usual object after `resize`
USUAL = 0.5  # the level of the usual object; brighter ones have levels up to 1
BRIGHT = 75  # the percentile of foreground pixels that stands for an object's brightness
FOREGROUND = 0.2  # levels above it belong to an object, if the image's own threshold is lower
NOISE = 1 / 16  # the most standard deviation of the background: faint noise is not amplified
LEAST_NOISE = 1 / 100  # of the square root of levels, where the brightest part is 1
TREND_DEVIATIONS = 2.0  # of the background's lower half, above which a pixel is no background
WIDE = 1 / 8  # of the image's longer side: the width of the Gaussian that background is mean over
SMALL = 64  # pixels of the longer side, of a copy on which that mean is computed
SMOOTHING = 1.0  # pixels, before an image is split into foreground and background
LEAST_AREA = 12  # pixels of an object whose size counts
SOLID = 0.92  # the least share of its convex hull that one object covers; two have a notch
PRIOR_OBJECTS = 4  # as so many objects of an image the size in the collection counts
MOST_ZOOM = 2.5  # by which an image's usual size may differ from the collection's


def normalise(grey: np.ndarray) -> np.ndarray:
    """Levels without background, and with the usual object at one half.

    The square root makes the noise of dim and bright parts more alike. The background is a
    quadratic surface plus a wide Gaussian mean over background pixels. The contrast is that of the
    foreground, but noise of the background never exceeds `NOISE`: an empty image stays dark.

    Args:
        grey: [H, W, C], raw levels from 0 to 1, objects bright.

    Returns:
        [H, W, C], float32 from 0 to 1.
    """
    root = np.sqrt(_stretched(np.asarray(grey, np.float32)))
    flat = np.stack([_without_background(root[..., c]) for c in range(root.shape[-1])], axis=-1)
    brightest = flat.max(-1)
    smooth = scipy.ndimage.gaussian_filter(brightest, SMOOTHING)
    is_object = smooth > otsu(smooth)
    background = flat[~is_object]
    noise = max(float(np.median(np.abs(background))) * 1.4826, LEAST_NOISE)
    contrast = np.percentile(brightest[is_object], BRIGHT) if is_object.any() else 0.0
    scale = max(contrast / USUAL, noise / NOISE)
    return np.clip(flat / scale, 0, 1).astype(np.float32)


def _stretched(grey: np.ndarray) -> np.ndarray:
    """Levels [H, W, C] up to 1, whatever part of their range an image uses."""
    high = scipy.ndimage.gaussian_filter(grey, (SMOOTHING, SMOOTHING, 0)).max()  # no hot pixels
    return np.minimum(grey / max(float(high), 1e-6), 1)


def _without_background(channel: np.ndarray) -> np.ndarray:
    """An image [H, W] minus its background."""
    rest = channel - _trend(channel)
    for _ in range(2):
        rest = rest - _wide_mean(rest, rest <= otsu(rest))
    is_background = rest <= otsu(rest)
    return rest - np.median(rest[is_background])


def _wide_mean(image: np.ndarray, is_background: np.ndarray) -> np.ndarray:
    """A wide Gaussian mean [H, W] over the background, computed on a small copy."""
    small = [max(1, round(side * SMALL / max(image.shape))) for side in image.shape]
    weights = is_background.astype(np.float32)
    both = resize(np.stack([image * weights, weights], axis=-1), small)
    sums, weights = (
        scipy.ndimage.gaussian_filter(both[..., k], WIDE * SMALL, mode="nearest") for k in (0, 1)
    )
    mean = sums / np.maximum(weights, 1e-3)
    return resize(mean[..., None], image.shape)[..., 0]


def _trend(channel: np.ndarray) -> np.ndarray:
    """A quadratic surface [H, W] through the background."""
    rows, columns = (np.linspace(-1, 1, side, dtype=np.float32) for side in channel.shape)
    rows, columns = (a.ravel() for a in np.meshgrid(rows, columns, indexing="ij"))
    terms = np.stack([np.ones_like(rows), rows, columns, rows * columns, rows**2, columns**2], -1)
    values = channel.ravel()
    some = slice(None, None, max(1, values.size // 20_000))
    sample, sampled_terms = values[some], terms[some]
    is_background = sample <= np.median(sample)
    for _ in range(8):
        fit = np.linalg.lstsq(sampled_terms[is_background], sample[is_background])[0]
        above = sample - sampled_terms @ fit
        below = above[above < 0]
        deviation = np.sqrt(np.mean(below**2)) if len(below) else 0.0
        is_background = above <= TREND_DEVIATIONS * max(deviation, LEAST_NOISE)
    return (terms @ fit).reshape(channel.shape)


def otsu(values: np.ndarray) -> float:
    """The threshold by Otsu's method; the highest value if all are the same."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return high
    number, edges = np.histogram(values, 256, (low, high))
    middle = (edges[1:] + edges[:-1]) / 2
    below, sums = np.cumsum(number)[:-1], np.cumsum(number * middle)[:-1]
    total, mean = values.size, (number @ middle) / values.size
    between = (mean * below - sums) ** 2 / (below * (total - below))
    return float(middle[between.argmax()])


def foreground(levels: np.ndarray, smoothing: float = SMOOTHING) -> np.ndarray:
    """Which pixels [H, W] of normalised levels [H, W, C] probably belong to objects."""
    smooth = scipy.ndimage.gaussian_filter(levels.max(-1), smoothing)
    return smooth > max(otsu(smooth), FOREGROUND)


class Components(NamedTuple):
    """The connected components of an image that are large enough for an object."""

    diameter: np.ndarray  # [n]: of a disc of the same area
    is_solid: np.ndarray  # [n]: no more than its convex hull: probably one object and not a clump

    @property
    def objects(self) -> np.ndarray:
        """The diameters of those that are probably one object."""
        return self.diameter[self.is_solid]


def components(levels: np.ndarray) -> Components:
    """Those of normalised levels [H, W, C]."""
    import skimage.measure

    regions = skimage.measure.regionprops(skimage.measure.label(foreground(levels)))
    regions = [region for region in regions if region.area >= LEAST_AREA]
    areas = np.array([region.area for region in regions], float)
    solid = np.array([region.solidity >= SOLID for region in regions], bool)
    return Components(np.sqrt(4 / np.pi * areas), solid)


def diameters(levels: np.ndarray) -> np.ndarray:
    """The diameters [n], in pixels, of what is probably one object in normalised levels."""
    return components(levels).objects


def usual_diameter(found: np.ndarray, collection: float) -> float:
    """The usual diameter of an image's objects: their median, in logarithms a mean of it and the
    collection's, with the weights n and `PRIOR_OBJECTS`."""
    if not len(found):
        return collection
    weight = len(found) / (len(found) + PRIOR_OBJECTS)
    ratio = (np.median(found) / collection) ** weight
    return float(collection * np.clip(ratio, 1 / MOST_ZOOM, MOST_ZOOM))


def zoomed(shape: tuple[int, int], diameter: float) -> tuple[int, int]:
    """The size of an image of `shape` after objects of a diameter have become STANDARD."""
    height, width = (max(8, round(side * STANDARD / diameter)) for side in shape)
    return height, width


def resize(levels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[H, W, C] -> [*size, C], bilinearly; a smaller image has means over what becomes a pixel."""
    if levels.shape[:2] == tuple(size):
        return levels
    channels = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(levels[..., c], np.float32)).resize(
                size[::-1], Image.Resampling.BILINEAR
            )
        )
        for c in range(levels.shape[-1])
    ]
    return np.stack(channels, axis=-1)
