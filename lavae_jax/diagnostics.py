"""Early diagnostics of training for each image: does q(z_loc) find every object exactly once?

The ELBO improves for a long time whether or not objects are found. From the first evaluation on,
these values tell the two cases apart; "Is a run healthy?" in docs/platforms.md describes what to
expect.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lavae_jax import counting, inference
from lavae_jax.inference import Detection
from lavae_jax.settings import LavaeSettings


class Masked(NamedTuple):
    """Values that are only defined for some images.

    Attributes:
        value: [B].
        valid: the images for which the value is defined, [B] bool.
    """

    value: jax.Array
    valid: jax.Array


def location_diagnostics(
    settings: LavaeSettings,
    detection: Detection,
    drawn: jax.Array,
    used: jax.Array,
    count: jax.Array,
) -> dict[str, jax.Array | Masked]:
    """Computes all diagnostics of B images.

    Args:
        settings: the model's settings.
        detection: what the location network finds in the images.
        drawn: flat pixel indices sampled from q(z_loc | n, x), [B, S].
        used: how many of them are used, [B].
        count: the true number of objects, or the inferred one if that is not known, [B].

    Returns:
        Values by name. `duplicate_samples`: whether a sample contains an object twice.
        `location_entropy`: the entropy of an object's pixel, in nats; 0 if h_loc selects one pixel.
        `peak_margin`: how far the lowest true peak is above the threshold, in units of γ.
        `false_peak_margin`: how far the highest false peak is below the threshold, in units of γ.
    """
    canvas = detection.h_loc.shape[1:3]
    pixel = inference.peak_locations(settings, detection).index
    entropy = location_entropy(detection.h_loc, pixel, detection.count, settings.sprite_size // 2)
    lowest_true, highest_false = peak_heights(settings, detection.h_loc, count)
    gamma = settings.gamma_for(canvas)
    return {
        "duplicate_samples": Masked(
            has_duplicate(drawn, used, canvas[1], 2 * settings.sprite_size // 3).astype(float),
            used >= 2,
        ),
        "location_entropy": Masked(entropy, detection.count > 0),
        "peak_margin": Masked(lowest_true / gamma - settings.threshold, count > 0),
        "false_peak_margin": Masked(
            settings.threshold - highest_false / gamma, jnp.isfinite(highest_false)
        ),
    }


def has_duplicate(pixel: jax.Array, count: jax.Array, width: int, reach: int) -> jax.Array:
    """Detects samples that contain two pixels close to each other.

    Args:
        pixel: flat pixel indices, [B, S].
        count: how many of them are used, [B].
        width: W, of the canvas.
        reach: pixels are close if they are at most this many rows and columns apart.

    Returns:
        [B] bool.
    """
    slot = jnp.arange(pixel.shape[1])
    rows, columns = jnp.divmod(pixel, width)
    apart = jnp.maximum(_differences(rows), _differences(columns))
    is_pair = (slot[:, None] < slot) & (slot < count[:, None, None])
    return jnp.any(is_pair & (apart <= reach), axis=(1, 2))


def _differences(values):
    return jnp.abs(values[:, :, None] - values[:, None, :])


def location_entropy(
    h_loc: jax.Array, pixel: jax.Array, count: jax.Array, radius: int
) -> jax.Array:
    """Computes the entropy of softmax(h_loc) around a peak, in nats, averaged over peaks.

    Args:
        h_loc: location logits, [B, H, W].
        pixel: flat pixel indices of peaks, [B, M].
        count: how many of them are used, [B].
        radius: a pixel belongs to a peak if it is at most this many rows and columns away.

    Returns:
        Entropies, [B]; 0 for an image without peaks.
    """
    margin = (radius, radius)
    padded = jnp.pad(h_loc, ((0, 0), margin, margin), constant_values=-jnp.inf)
    size = 2 * radius + 1

    def around(image, pixel):
        row, column = jnp.divmod(pixel, h_loc.shape[2])
        return jax.lax.dynamic_slice(image, (row, column), (size, size)).reshape(-1)

    windows = jax.vmap(jax.vmap(around, (None, 0)))(padded, pixel)
    log_b = jax.nn.log_softmax(windows)
    entropy = -jnp.sum(jnp.where(jnp.isfinite(log_b), jnp.exp(log_b) * log_b, 0), -1)
    used = jnp.arange(pixel.shape[1]) < count[:, None]
    return jnp.where(used, entropy, 0).sum(1) / jnp.maximum(count, 1)


def peak_heights(
    settings: LavaeSettings, h_loc: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Finds the lowest true peak and the highest false peak of each image.

    The `count` highest local maxima of h_loc are taken to be the true peaks.

    Args:
        settings: the model's settings.
        h_loc: location logits, γ included, [B, H, W].
        count: the number of objects, [B].

    Returns:
        Two heights, [B] each. The first is that of the lowest true peak: undefined if the count is
        0, and the minimum of h_loc if there are fewer maxima than objects. The second is that of
        the highest false peak: -inf if there is none.
    """
    maxima = counting.peaks(h_loc, -jnp.inf, settings.peak_radius)
    heights = jnp.where(maxima, h_loc, -jnp.inf).reshape(len(h_loc), -1)
    highest = jax.lax.top_k(heights, min(settings.max_objects + 1, heights.shape[1]))[0]
    last = highest.shape[1] - 1
    true = jnp.take_along_axis(highest, jnp.clip(count - 1, 0, last)[:, None], 1)[:, 0]
    false = jnp.take_along_axis(highest, jnp.clip(count, 0, last)[:, None], 1)[:, 0]
    true = jnp.where(jnp.isfinite(true), true, h_loc.min((1, 2)))
    return true, jnp.where(count <= last, false, -jnp.inf)
