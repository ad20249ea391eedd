"""Classical segmentation, for comparison: connected components and watershed.

A method takes a binary image [H, W, C] and gives each pixel the number of its object, 1 to n, or 0.
In images with three channels, each colour is segmented separately. The constants were chosen for
the highest count accuracy on new scenes of digits and shapes, with and without overlap.
"""

from collections.abc import Callable

import numpy as np
import scipy.ndimage

MIN_AREA = 8  # pixels; smaller components are dropped: they are parts of broken strokes
SMOOTHING = 3.0  # pixels, of the distance transform: strokes have many local maxima
MIN_DISTANCE = 7  # pixels between two maxima

Method = Callable[[np.ndarray], np.ndarray]


def threshold(images: np.ndarray) -> float:
    """Computes one threshold for images by Otsu's method.

    Args:
        images: [B, H, W, C], levels from 0 to 1.

    Returns:
        The threshold; 0.5 for binary images.
    """
    import skimage.filters

    levels = np.asarray(images)
    if np.isin(levels, (0, 1)).all():
        return 0.5
    return float(skimage.filters.threshold_otsu(levels))


def connected_components(image: np.ndarray) -> np.ndarray:
    """Segments an image into connected components, with 8 neighbours.

    Args:
        image: [H, W, C], binary.

    Returns:
        [H, W]: the number of the pixel's object, or 0.
    """
    import skimage.measure

    # Neighbours of different colours are not connected.
    return _without_small(skimage.measure.label(_colours(image), background=0))


def watershed(image: np.ndarray) -> np.ndarray:
    """Segments an image by flooding its distance transform.

    The markers are the local maxima of the smoothed distance to the background, at least one in
    each connected component.

    Args:
        image: [H, W, C], binary.

    Returns:
        [H, W]: the number of the pixel's object, or 0.
    """
    import skimage.feature
    import skimage.segmentation

    components, colours = connected_components(image), _colours(image)
    labels = np.zeros_like(components)
    for colour in np.unique(colours[components > 0]):
        own = np.where(colours == colour, components, 0)
        distance = scipy.ndimage.distance_transform_edt(own > 0)
        distance = scipy.ndimage.gaussian_filter(distance, SMOOTHING)
        maxima = skimage.feature.peak_local_max(
            distance, min_distance=MIN_DISTANCE, labels=own, exclude_border=False
        )
        markers = np.zeros_like(own)
        markers[tuple(maxima.T)] = labels.max() + 1 + np.arange(len(maxima))
        labels += skimage.segmentation.watershed(-distance, markers, connectivity=2, mask=own > 0)
    return labels


def _colours(image: np.ndarray) -> np.ndarray:
    """The bits of a binary image's channels as one number: [H, W], 0 for the background."""
    return (np.asarray(image) > 0.5) @ (1 << np.arange(image.shape[-1]))


def _without_small(labels: np.ndarray) -> np.ndarray:
    """Removes components that are too small, and renumbers the others."""
    is_kept = np.bincount(labels.ravel()) >= MIN_AREA
    is_kept[0] = False
    return np.where(is_kept, np.cumsum(is_kept), 0)[labels]


METHODS: dict[str, Method] = {
    "connected-components": connected_components,
    "watershed": watershed,
}
