"""Grey images as a model sees them: no background, the same contrast, objects of the same size.

    levels = normalise(grey)                  a typical object has a brightness of one half
    found = diameters(levels)                 of components that are probably single objects
    usual = usual_diameter(found, collection)
    resize(levels, zoomed(shape, usual))      a typical object is STANDARD pixels wide

All of this is estimated from the image itself. The fewer objects an image shows, the more the
estimate of their size depends on that of the whole collection.
"""

from typing import NamedTuple

import numpy as np
import scipy.ndimage
from PIL import Image

STANDARD = 12.0  # pixels: the diameter of a typical object after `resize`
USUAL = 0.5  # the level of a typical object; brighter ones have levels up to 1
BRIGHT = 75  # the brightness of an object is this percentile of the foreground pixels
FOREGROUND = 0.2  # the lowest threshold between background and objects
NOISE = 1 / 16  # the largest noise of the background after scaling; it limits the contrast
LEAST_NOISE = 1 / 100  # noise is assumed to be at least this, in square roots of levels up to 1
TREND_DEVIATIONS = 2.0  # pixels farther above the fitted surface are not background (`_trend`)
WIDE = 1 / 8  # of the image's longer side: standard deviation of the wide Gaussian mean
SMALL = 64  # pixels: the longer side of the copy on which that mean is computed
SMOOTHING = 1.0  # pixels: standard deviation of the filter before a foreground threshold
LEAST_AREA = 12  # pixels; smaller components are ignored
SOLID = 0.92  # the smallest share of its convex hull that a single object covers
PRIOR_OBJECTS = 4  # the weight of the collection's diameter, in objects of the image
MOST_ZOOM = 2.5  # the largest ratio between diameters of an image and of the collection


def normalise(grey: np.ndarray) -> np.ndarray:
    """Removes the background and scales the contrast, so that a typical object is at one half.

    The square root makes the noise of dim and bright parts more alike. The background is a
    quadratic surface plus a wide Gaussian mean over background pixels. The contrast is that of the
    foreground, but noise of the background never exceeds `NOISE`: an empty image stays black.

    Args:
        grey: raw levels from 0 to 1, bright objects, [H, W, C].

    Returns:
        Levels from 0 to 1, [H, W, C] float32.
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
    """Scales levels [H, W, C] to a maximum of 1, whatever part of the range an image uses."""
    high = scipy.ndimage.gaussian_filter(grey, (SMOOTHING, SMOOTHING, 0)).max()  # no hot pixels
    return np.minimum(grey / max(float(high), 1e-6), 1)


def _without_background(channel: np.ndarray) -> np.ndarray:
    """Subtracts the background of an image [H, W]."""
    rest = channel - _trend(channel)
    for _ in range(2):
        rest = rest - _wide_mean(rest, rest <= otsu(rest))
    is_background = rest <= otsu(rest)
    return rest - np.median(rest[is_background])


def _wide_mean(image: np.ndarray, is_background: np.ndarray) -> np.ndarray:
    """A wide Gaussian mean [H, W] over the background, computed on a small copy."""
    height, width = (max(1, round(side * SMALL / max(image.shape))) for side in image.shape)
    weights = is_background.astype(np.float32)
    both = resize(np.stack([image * weights, weights], axis=-1), (height, width))
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
    """Computes a threshold by Otsu's method.

    Args:
        values: [...].

    Returns:
        The threshold; the highest value if all are the same.
    """
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
    """Finds the pixels that probably belong to objects.

    Args:
        levels: normalised levels, [H, W, C].
        smoothing: standard deviation of a Gaussian filter applied first, in pixels.

    Returns:
        [H, W] bool.
    """
    smooth = scipy.ndimage.gaussian_filter(levels.max(-1), smoothing)
    return smooth > max(otsu(smooth), FOREGROUND)


class Components(NamedTuple):
    """The connected components of an image that are large enough to be objects.

    Attributes:
        diameter: the diameter of a disc of the same area, [n].
        is_solid: whether a component almost fills its convex hull, [n] bool; it is then probably a
            single object and not a cluster.
    """

    diameter: np.ndarray
    is_solid: np.ndarray

    @property
    def objects(self) -> np.ndarray:
        """Diameters of the components that are probably single objects, in pixels, [k]."""
        return self.diameter[self.is_solid]


def components(levels: np.ndarray) -> Components:
    """Finds the connected components of the foreground.

    Args:
        levels: normalised levels, [H, W, C].

    Returns:
        The components.
    """
    import skimage.measure

    regions = skimage.measure.regionprops(skimage.measure.label(foreground(levels)))
    regions = [region for region in regions if region.area >= LEAST_AREA]
    areas = np.array([region.area for region in regions], float)
    solid = np.array([region.solidity >= SOLID for region in regions], bool)
    return Components(np.sqrt(4 / np.pi * areas), solid)


def diameters(levels: np.ndarray) -> np.ndarray:
    """Measures components that are probably single objects.

    Args:
        levels: normalised levels, [H, W, C].

    Returns:
        Diameters in pixels, [n].
    """
    return components(levels).objects


def usual_diameter(found: np.ndarray, collection: float) -> float:
    """Estimates the diameter of a typical object of an image.

    It is the geometric mean of the image's median and the collection's diameter, with the weights n
    and `PRIOR_OBJECTS`.

    Args:
        found: diameters of objects in the image, [n].
        collection: the diameter of a typical object of the collection.

    Returns:
        The diameter, within a factor of `MOST_ZOOM` of the collection's.
    """
    if not len(found):
        return collection
    weight = len(found) / (len(found) + PRIOR_OBJECTS)
    ratio = (np.median(found) / collection) ** weight
    return float(collection * np.clip(ratio, 1 / MOST_ZOOM, MOST_ZOOM))


def zoomed(shape: tuple[int, int], diameter: float) -> tuple[int, int]:
    """Computes the size of an image in which a typical object is STANDARD pixels wide.

    Args:
        shape: height and width of the image.
        diameter: the diameter of a typical object, in pixels.

    Returns:
        Height and width of the zoomed image.
    """
    height, width = (max(8, round(side * STANDARD / diameter)) for side in shape)
    return height, width


def resize(levels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes an image bilinearly; when it becomes smaller, pixels are averaged over areas.

    Args:
        levels: [H, W, C].
        size: the new height and width.

    Returns:
        [*size, C].
    """
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
