"""Objects drawn in another way: other stroke widths and sizes, and centres between pixels.

A network that is trained on composed scenes of the training images' own objects (see `sleep`)
expects objects to look exactly so. Some of the objects are therefore drawn anew: scaled, shifted by
a fraction of a pixel, blurred, and made binary again by a threshold. The wider the blur and the
lower the threshold, the thicker the strokes.
"""

import chex
import jax
import jax.numpy as jnp

MARGIN = 2  # pixels that an object may grow by, on each side
SCALE = (0.8, 1.1)  # of rows and columns, separately
BLUR = (1.0, 1.6)  # half the width of a triangle filter, in pixels; at 1, it interpolates
LEVEL = (0.25, 0.55)  # the threshold, as a share of the highest value, so that nothing disappears


def centre_of_mass(windows: jax.Array) -> jax.Array:
    """Computes the centres of mass of objects.

    Args:
        windows: objects, [S, h, w, C].

    Returns:
        Rows and columns relative to the middle pixel, [S, 2]; 0 for empty windows.
    """
    mass = windows.sum(-1)
    total = jnp.maximum(mass.sum((1, 2)), 1e-6)
    rows, columns = (jnp.arange(side) - side // 2 for side in mass.shape[1:])
    return jnp.stack([mass.sum(2) @ rows, mass.sum(1) @ columns], -1) / total[:, None]


def distort(windows: jax.Array, keys: chex.PRNGKey, share: float) -> jax.Array:
    """Draws some of the objects in another way.

    The centre of mass of such an object is anywhere in the middle pixel of its window.

    Args:
        windows: binary objects, centred in squares, [S, h, h, C].
        keys: random keys, [S].
        share: the probability that an object is drawn in another way.

    Returns:
        Binary objects, [S, h + 2 m, h + 2 m, C], where m is `MARGIN`.
    """
    centre = centre_of_mass(windows)
    padded = jnp.pad(windows, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)))
    return jax.vmap(lambda w, c, k: _distort(w, c, k, share))(padded, centre, keys)


def _distort(window, centre, key, share):
    keys = jax.random.split(key, 5)
    is_distorted = jax.random.bernoulli(keys[0], share)
    low, high = jnp.log(jnp.array(SCALE))
    scale = jnp.exp(jax.random.uniform(keys[1], (2,), minval=low, maxval=high))
    shift = jax.random.uniform(keys[2], (2,), minval=-0.5, maxval=0.5)
    blur = jax.random.uniform(keys[3], (), minval=BLUR[0], maxval=BLUR[1])
    level = jax.random.uniform(keys[4], (), minval=LEVEL[0], maxval=LEVEL[1])
    drawn = redraw(window, centre, shift, scale, blur)
    drawn = (drawn > level * drawn.max()).astype(window.dtype)
    return jnp.where(is_distorted, drawn, window)


def redraw(
    window: jax.Array, centre: jax.Array, shift: jax.Array, scale: jax.Array, blur: jax.Array
) -> jax.Array:
    """Moves, scales and blurs an object.

    Args:
        window: an object, [h, h, C].
        centre: a point of it, in rows and columns relative to the middle pixel, [2].
        shift: where that point moves to, in the same coordinates, [2].
        scale: the factors by which rows and columns are scaled, [2].
        blur: half the width of a triangle filter, in pixels, at least 1.

    Returns:
        The object, not binary any more, [h, h, C].
    """
    at = jnp.arange(window.shape[0]) - window.shape[0] // 2

    def weights(k):
        """Of each pixel of the object for each pixel of the result, [h, h]."""
        source = (at[:, None] - shift[k]) / scale[k] + centre[k]
        width = blur / jnp.minimum(scale[k], 1.0)  # scaling down averages over more pixels
        triangle = lambda distance: jnp.maximum(1 - jnp.abs(distance) / width, 0)  # noqa: E731
        total = triangle(source - jnp.round(source) + jnp.arange(-2, 3)).sum(1, keepdims=True)
        return triangle(source - at) / total

    return jnp.einsum("yi,ijc,xj->yxc", weights(0), window, weights(1))
