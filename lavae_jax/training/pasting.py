"""Grey scenes of objects that touch, pasted together from objects that stand alone.

As in `sleep`, what q should infer from a composed scene is known exactly. Here, images are grey
(see `normalisation`). The objects are solid connected components of normalised training images,
without another component that touches them. A scene shows them at different sizes, brightnesses and
angles, most of them next to another object. Its background has haze, fibres, specks and noise,
which the location network must not detect.
"""

from collections.abc import Iterable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage
from jax import lax

from lavae_jax import bernoulli, gaussian, likelihoods, normalisation, placement, warmup
from lavae_jax.training.phases import Metrics
from lavae_jax.training.sleep import ComposedScenes
from lavae_jax.training.trainee import Trainee

# Scenes: ranges that quantities are drawn from. Levels and sizes are those of `normalisation`.
BESIDE = 0.6  # the share of objects that are placed next to another one
APART = (0.75, 1.2)  # distance of two such objects, in units of the sum of their radii
SCALED = 0.5  # the share of objects that are scaled
SCALE = (0.5, 1.8)
STRETCH = 0.12  # standard deviation of half the logarithm of an object's height over its width
BRIGHTNESS = (0.4, 1.4)
EXTENT = 0.4  # an object consists of the pixels above this share of its brightness
VISIBLE = 0.2  # an object is counted if at least this share of it is visible, and ...
LEAST_VISIBLE = 10  # ... at least this many of its pixels
BLUR = 0.9  # pixels, at most
HAZE = 0.05  # standard deviation, at most
NOISE = 0.05  # standard deviation, at most
DECOYS = 3  # fibres in a scene, at most; the same for specks
# Objects: how they are cut out.
LEAST_AREA = 20  # pixels
SURROUNDINGS = 2  # pixels around an object that belong to it


# --- objects that stand alone --------------------------------------------------


def isolated(image: np.ndarray, side: int) -> np.ndarray:
    """Cuts out the objects of an image that no other object touches.

    They are solid, do not touch the border of the image, and fit into a square, in which they are
    centred.

    Args:
        image: a normalised image, [H, W, C].
        side: the side of a square, in pixels.

    Returns:
        A square for each object, black around it, [n, side, side, C].
    """
    import skimage.measure

    half = side // 2
    labels = skimage.measure.label(normalisation.foreground(image, smoothing=0.7))
    padded = np.pad(image, ((half, half), (half, half), (0, 0)))
    padded_labels = np.pad(labels, half)
    found = [np.zeros((0, side, side, image.shape[-1]), np.float32)]
    for region in skimage.measure.regionprops(labels):
        top, left, bottom, right = region.bbox
        is_whole = top > 0 and left > 0 and bottom < labels.shape[0] and right < labels.shape[1]
        is_small = max(bottom - top, right - left) <= side - 2 * SURROUNDINGS
        if region.area < LEAST_AREA or not is_whole or not is_small:
            continue
        if region.solidity < normalisation.SOLID:
            continue
        row, column = np.rint(region.centroid).astype(int)
        square = np.s_[row : row + side, column : column + side]
        own = padded_labels[square] == region.label
        reach = scipy.ndimage.binary_dilation(own, iterations=SURROUNDINGS)
        if (padded_labels[square][reach & ~own] > 0).any():
            continue
        faded = scipy.ndimage.gaussian_filter(reach.astype(np.float32), 0.7)
        found.append((padded[square] * faded[..., None])[None])
    return np.concatenate(found)


def collect(batches: Iterable[np.ndarray], side: int, channels: int, number: int) -> np.ndarray:
    """Collects the first isolated objects of several images.

    Args:
        batches: batches of normalised images, [B, H, W, C] each.
        side: the side of the squares around objects, in pixels: a sprite's size.
        channels: C.
        number: how many objects to return; if fewer are found, they repeat.

    Returns:
        The objects, [number, side, side, C].

    Raises:
        ValueError: if no object of the images is isolated.
    """
    found = [np.zeros((0, side, side, channels), np.float32)]
    for images in batches:
        found += [isolated(np.asarray(image), side) for image in images]
        if sum(map(len, found)) >= number:
            break
    objects = np.concatenate(found)[:number]
    if not len(objects):
        raise ValueError(
            "no object of the training images stands alone, is solid, and fits into "
            f"config.model.sprite_size={side}; `lavae show` shows what the model sees"
        )
    return objects[np.arange(number) % len(objects)]


# --- scenes ------------------------------------------------------------------


def compose(
    objects: jax.Array, keys: chex.PRNGKey, canvas: tuple[int, int], max_objects: int
) -> ComposedScenes:
    """Composes a scene for each key.

    An object's location is the pixel nearest to the centre of its visible part. Objects of which
    too little is visible are in the scene, but are not counted.

    Args:
        objects: isolated objects, [K, h, h, C].
        keys: [B].
        canvas: height and width of a scene.
        max_objects: S, the largest number of objects in a scene.

    Returns:
        B scenes.
    """
    objects = jnp.asarray(objects)
    return jax.vmap(lambda key: _compose(objects, key, canvas, max_objects))(keys)


class _Chosen(NamedTuple):
    """Objects to be placed."""

    windows: jax.Array  # [S, h, h, C]
    extent: jax.Array  # [S]: the level above which a pixel is the object's
    scale: jax.Array  # [S, 2]: of rows and columns
    radius: jax.Array  # [S]: of the disc of the same area, in pixels


def _compose(objects, key, canvas, max_objects) -> ComposedScenes:
    count_key, choice_key, place_key, look_key = jax.random.split(key, 4)
    chosen = _choose(objects, choice_key, max_objects)
    used = jnp.arange(max_objects) < jax.random.randint(count_key, (), 0, max_objects + 1)
    centre, fits = _place(chosen.radius, place_key, canvas)
    levels = jnp.where((used & fits)[:, None, None, None], _draw(chosen, centre, canvas), 0)
    top = levels.max(0)
    extent = levels.max(-1) > chosen.extent[:, None, None]
    seen = extent & (levels.max(-1) >= top.max(-1))
    area = seen.sum((1, 2))
    whole = jnp.pi * jnp.square(chosen.radius)
    is_counted = used & fits & (area >= jnp.maximum(LEAST_VISIBLE, VISIBLE * whole))
    rows, columns = (jnp.arange(side) for side in canvas)
    row = jnp.floor((seen.sum(2) @ rows) / jnp.maximum(area, 1) + 0.5).astype(int)
    column = jnp.floor((seen.sum(1) @ columns) / jnp.maximum(area, 1) + 0.5).astype(int)
    order = jnp.argsort(~is_counted)  # stable
    row, column = row[order], column[order]
    windows = _windows(levels[order], row, column, objects.shape[1])
    image = _photograph(top, look_key)
    return ComposedScenes(image, is_counted.sum(), row * canvas[1] + column, windows)


def _choose(objects, key, number) -> _Chosen:
    index_key, turn_key, scaled_key, scale_key, stretch_key, light_key = jax.random.split(key, 6)
    windows = objects[jax.random.randint(index_key, (number,), 0, len(objects))]
    windows = warmup.augment(windows, jax.random.split(turn_key, number), 1.0)
    is_scaled = jax.random.bernoulli(scaled_key, SCALED, (number,))
    scale = jnp.where(is_scaled, _log_uniform(scale_key, SCALE, (number,)), 1.0)
    stretch = jnp.exp(STRETCH * jax.random.normal(stretch_key, (number,)))
    windows = windows * _log_uniform(light_key, BRIGHTNESS, (number, 1, 1, 1))
    brightest = windows.max(-1)
    # A mean of levels that is weighted by the levels themselves hardly depends on the background.
    level = jnp.square(brightest).sum((1, 2)) / jnp.maximum(brightest.sum((1, 2)), 1e-6)
    extent = EXTENT * level
    area = (brightest > extent[:, None, None]).sum((1, 2)) * jnp.square(scale)
    scales = jnp.stack([scale * stretch, scale / stretch], -1)
    return _Chosen(windows, extent, scales, jnp.sqrt(area / jnp.pi))


def _place(radius, key, canvas) -> tuple[jax.Array, jax.Array]:
    """Centres [S, 2], and which objects [S] have room. They are placed one after the other."""
    number, tries = len(radius), 4
    keys = jax.random.split(key, 5)
    size = jnp.array(canvas, jnp.float32)
    anywhere = jax.random.uniform(keys[0], (number, tries, 2)) * (size + 8) - 4.5
    angle = jax.random.uniform(keys[1], (number, tries), maxval=2 * jnp.pi)
    apart = jax.random.uniform(keys[2], (number, tries), minval=APART[0], maxval=APART[1])
    is_beside = jax.random.bernoulli(keys[3], BESIDE, (number,))
    preference = jax.random.uniform(keys[4], (number, number))
    direction = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)

    def place(state, i):
        centre, placed = state
        other = jnp.where(placed, preference[i], -1).argmax()
        distance = apart[i] * (radius[i] + radius[other])
        beside = centre[other] + distance[:, None] * direction[i]
        proposed = jnp.where(is_beside[i] & placed.any(), beside, anywhere[i])
        away = jnp.linalg.norm(proposed[:, None] - centre, axis=-1)  # [tries, S]
        near = placed & (away < APART[0] * (radius[i] + radius) - 1e-3)
        is_inside = ((proposed > -4.5) & (proposed < size + 3.5)).all(-1)
        has_room = ~near.any(1) & is_inside
        centre = centre.at[i].set(proposed[has_room.argmax()])
        return (centre, placed.at[i].set(has_room.any())), None

    state = jnp.zeros((number, 2)), jnp.zeros(number, bool)
    return lax.scan(place, state, jnp.arange(number))[0]


def _draw(chosen: _Chosen, centre, canvas) -> jax.Array:
    """Each object by itself on the canvas, [S, H, W, C]: scaled and moved, bilinearly."""
    side = chosen.windows.shape[1]

    def axis(k):
        at = jnp.arange(canvas[k]) - centre[:, k, None]  # [S, H]
        scale = chosen.scale[:, k, None, None]
        distance = jnp.abs(at[..., None] / scale - (jnp.arange(side) - side // 2))
        width = jnp.maximum(1 / scale, 1.0)  # scaling down averages over pixels
        return jnp.maximum(1 - distance / width, 0) / width  # [S, H, h]

    return jnp.einsum("syi,sijc,sxj->syxc", axis(0), chosen.windows, axis(1))


def _windows(levels, row, column, side) -> jax.Array:
    """The squares [S, h, h, C] around pixels of levels [S, H, W, C]; black outside the canvas."""
    half = side // 2
    padded = jnp.pad(levels, ((0, 0), (half, half), (half, half), (0, 0)))
    size = (side, side, levels.shape[-1])
    return jax.vmap(lambda a, r, c: lax.dynamic_slice(a, (r, c, 0), size))(padded, row, column)


# --- training on them ----------------------------------------------------------


def portrait_loss(
    module: Trainee,
    objects: jax.Array,
    keys: chex.PRNGKey,
    canvas: tuple[int, int],
    max_objects: int,
) -> tuple[jax.Array, Metrics]:
    """Computes the negative ELBO of objects by themselves, with q inferred from whole scenes.

    The ELBO

        log p(object | sprite) - KL(q(z_app | z_loc, scene) || N(0, I))

    is a lower bound on log p(object), whatever q is inferred from. So the decoder learns whole
    objects, and the appearance network learns to infer them next to others.

    Args:
        module: a bound LAVAE.
        objects: isolated objects, [K, h, h, C].
        keys: a key for each scene, [B].
        canvas: height and width of a scene.
        max_objects: the largest number of objects in a scene.

    Returns:
        The mean over the objects of all scenes, and its two parts as metrics.
    """
    scene_keys, noise_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    scenes = compose(objects, scene_keys, canvas, max_objects)
    size, slots = scenes.pixel.shape
    image = jnp.repeat(jnp.arange(size), slots)
    window = 2 * module.lavae.appearance.radius + 1
    pixel = scenes.pixel.reshape(-1)
    seen = placement.windows_at(scenes.image, pixel, image, window)
    q_app = gaussian.from_features(module.lavae.appearance(seen)[:, 0, 0])
    shape = (slots, module.settings.latent_size)
    noise = jax.vmap(lambda key: jax.random.normal(key, shape))(noise_keys)
    sprites = module.lavae.decoder(gaussian.sample(q_app, noise.reshape(size * slots, -1)))
    alone = scenes.windows.reshape(sprites.shape)
    likelihood = likelihoods.of(module.settings)
    log_p = bernoulli.sum_pixels(likelihood.log_prob(alone, sprites))
    kl = gaussian.kl_to_standard(q_app).sum(-1)
    used = (jnp.arange(slots) < scenes.count[:, None]).reshape(-1)
    number = jnp.maximum(used.sum(), 1)
    neg_log_likelihood = -jnp.where(used, log_p, 0).sum() / number
    kl = jnp.where(used, kl, 0).sum() / number
    metrics = {"object_neg_log_likelihood": neg_log_likelihood, "object_kl": kl}
    return neg_log_likelihood + kl, metrics


# --- everything but objects ------------------------------------------------------


def _photograph(image, key) -> jax.Array:
    """Adds decoys, blur, haze and noise to an image [H, W, C]; levels from 0 to 1."""
    fibre_key, speck_key, blur_key, haze_key, noise_key = jax.random.split(key, 5)
    canvas = image.shape[:2]
    rows, columns = (jnp.arange(side, dtype=jnp.float32) for side in canvas)
    decoys = jnp.maximum(
        _some(_fibre, fibre_key, rows[:, None], columns),
        _some(_speck, speck_key, rows[:, None], columns),
    )
    image = jnp.maximum(image, decoys[..., None])
    blur = jax.random.uniform(blur_key, (), maxval=BLUR)
    image = _blurred(image, blur)
    haze = _texture(haze_key, image.shape, (6.0, 16.0), HAZE)
    # Bright pixels have more noise.
    noise = _texture(noise_key, image.shape, (0.05, 1.2), NOISE) * (1 + jnp.sqrt(image))
    return jnp.clip(image + haze + noise, 0, 1)


def _some(make, key, rows, columns) -> jax.Array:
    """[H, W]: the maximum of up to `DECOYS` fibres or specks; 4 out of 7 scenes have none."""
    number_key, key = jax.random.split(key)
    number = jax.random.randint(number_key, (), -DECOYS, DECOYS + 1)
    each = jax.vmap(lambda key: make(key, rows, columns))(jax.random.split(key, DECOYS))
    return jnp.where((jnp.arange(DECOYS) < number)[:, None, None], each, 0).max(0)


def _fibre(key, rows, columns) -> jax.Array:
    """A thin, bent line."""
    keys = jax.random.split(key, 6)
    row, column = jax.random.uniform(keys[0], (2,)) * jnp.array([rows.size, columns.size])
    angle = jax.random.uniform(keys[1], (), maxval=2 * jnp.pi)
    down, right = rows - row, columns - column
    along = down * jnp.sin(angle) + right * jnp.cos(angle)
    bend = jax.random.uniform(keys[2], (), minval=-0.02, maxval=0.02)
    across = down * jnp.cos(angle) - right * jnp.sin(angle) - bend * jnp.square(along)
    length, width = _log_uniform(keys[3], (4, 60)), _log_uniform(keys[4], (0.5, 1.6))
    profile = jnp.exp(-0.5 * jnp.square(across / width))
    level = _log_uniform(keys[5], (0.03, 0.25))
    return level * profile * jax.nn.sigmoid(length / 2 - jnp.abs(along))


def _speck(key, rows, columns) -> jax.Array:
    """A dot that is smaller than any object."""
    keys = jax.random.split(key, 3)
    row, column = jax.random.uniform(keys[0], (2,)) * jnp.array([rows.size, columns.size])
    distance = jnp.square(rows - row) + jnp.square(columns - column)
    width, level = _log_uniform(keys[1], (0.4, 0.9)), _log_uniform(keys[2], (0.05, 0.5))
    return level * jnp.exp(-0.5 * distance / jnp.square(width))


def _texture(key, shape, grain, most) -> jax.Array:
    """Smooth Gaussian noise, mostly weak; `grain` is the range of its width in pixels."""
    noise_key, grain_key, level_key = jax.random.split(key, 3)
    noise = _blurred(jax.random.normal(noise_key, shape), _log_uniform(grain_key, grain))
    level = most * jnp.square(jax.random.uniform(level_key))
    return level * noise / jnp.maximum(noise.std(), 1e-6)


def _blurred(image, width) -> jax.Array:
    """[H, W, C], convolved with a Gaussian."""

    def axis(side):
        at = jnp.arange(side)
        weights = jnp.exp(-0.5 * jnp.square((at[:, None] - at) / jnp.maximum(width, 0.05)))
        return weights / weights.sum(1, keepdims=True)

    return jnp.einsum("yi,ijc,xj->yxc", axis(image.shape[0]), image, axis(image.shape[1]))


def _log_uniform(key, span, shape=()) -> jax.Array:
    low, high = np.log(span)
    return jnp.exp(jax.random.uniform(key, shape, minval=low, maxval=high))
