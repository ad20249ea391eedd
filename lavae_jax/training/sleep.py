"""Scenes of the model itself, whose objects and locations are known, to train q on.

The ELBO on data tells little about scenes that the data do not show, such as crowds of objects
that overlap. But the generative model can compose them: any number of objects, at locations
from p(z_loc | n), each as it was found alone in a training image. What q should infer from such
a scene is known exactly. To raise log q of the truth is to minimise the forward KL,

    E_{p(x, z)} [-log q(z | x)] = E_{p(x)} [KL(p(z | x) || q(z | x))] + constant,

as in the sleep phase of wake-sleep (Hinton et al., 1995). `curricula` has the phases that use it.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lavae_jax import gaussian, locations, model, placement, warmup
from lavae_jax.model import Variables
from lavae_jax.settings import LavaeSettings
from lavae_jax.training.phases import TrainingImages
from lavae_jax.training.trainee import Trainee

# --- objects that stand alone --------------------------------------------------


def isolated(
    settings: LavaeSettings, x: jax.Array, pixel: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Objects of images x [B, H, W, C] that no other one touches.

    Args:
        pixel: [B, M], where objects are, of which the first `count` [B] hold.

    Returns:
        The squares of a sprite's size around them, [B, M, h, h, C], and which of these show an
        object, all of it and nothing else, [B, M]: it is brighter than nothing, no other object is
        within a sprite's size, and its surroundings are empty and on the canvas.
    """
    side = settings.sprite_size
    height, width = x.shape[1:3]
    image = jnp.repeat(jnp.arange(len(x)), pixel.shape[1])
    around = placement.windows_at(x, pixel.reshape(-1), image, side + 2)
    around = around.reshape(*pixel.shape, *around.shape[1:])
    window = around[:, :, 1:-1, 1:-1]
    row, column = jnp.divmod(pixel, width)
    reach = side // 2 + 1
    on_canvas = (row >= reach) & (row < height - reach) & (column >= reach)
    on_canvas &= column < width - reach
    used = jnp.arange(pixel.shape[1]) < count[:, None]
    distance = jnp.maximum(*(jnp.abs(a[:, :, None] - a[:, None]) for a in (row, column)))
    another = used[:, None] & ~jnp.eye(pixel.shape[1], dtype=bool)
    crowded = jnp.any(another & (distance <= side), axis=2)
    mass = window.sum((2, 3, 4))
    surroundings = around.sum((2, 3, 4)) - mass
    return window, used & on_canvas & ~crowded & (mass > 0) & (surroundings == 0)


def collect(
    module: Trainee, variables: Variables, images: TrainingImages, detect: Callable, number: int
) -> np.ndarray:
    """The first isolated objects of the training images, [number, h, h, C].

    Args:
        detect: (module, x) -> pixels [B, M] and counts [B], where objects of images x are.
        number: how many objects; where there are fewer, they repeat.
    """
    side, channels = module.settings.sprite_size, module.settings.channels
    if images.is_sample:
        return np.zeros((number, side, side, channels), np.float32)

    def find(module, x):
        return isolated(module.settings, x, *detect(module, x))

    find = jax.jit(model.bind(find, module))
    found = [np.zeros((0, side, side, channels), np.float32)]
    for x in images.batches():
        window, is_isolated = map(np.asarray, find(variables, x))
        found.append(window[is_isolated])
        if sum(map(len, found)) >= number:
            break
    objects = np.concatenate(found)[:number]
    if not len(objects):
        raise ValueError(
            "no object of the training images stands alone. Is config.model.sprite_size="
            f"{side} at least the size of the largest object, and is most of an image background?"
        )
    return objects[np.arange(number) % len(objects)]


# --- scenes ------------------------------------------------------------------


class ComposedScenes(NamedTuple):
    """B scenes of at most S objects each."""

    image: jax.Array  # [B, H, W, C]
    count: jax.Array  # [B]
    pixel: jax.Array  # [B, S]: where objects are; the first `count` hold
    windows: jax.Array  # [B, S, h, h, C]: what each of them looks like alone

    @property
    def marked(self) -> jax.Array:
        """[B, H, W] bool: the pixels where objects are."""
        size, slots = self.pixel.shape
        height, width = self.image.shape[1:3]
        used = jnp.arange(slots) < self.count[:, None]
        marked = jnp.zeros((size, height * width), bool)
        marked = marked.at[jnp.arange(size)[:, None], self.pixel].max(used)
        return marked.reshape(size, height, width)


def compose(
    objects: jax.Array,
    keys: chex.PRNGKey,
    canvas: tuple[int, int],
    max_objects: int,
    augmented_share: float,
) -> ComposedScenes:
    """A scene for each key [B], of objects [K, h, h, C].

    The number of objects is uniform on 0..S = `max_objects`; their locations are from
    p(z_loc | n). A share of the objects is rotated and mirrored. Where objects overlap, the last
    one is in front; for binary images of one colour, that is their union.
    """
    objects = jnp.asarray(objects)
    return jax.vmap(lambda key: _compose(objects, key, canvas, max_objects, augmented_share))(keys)


def _compose(objects, key, canvas, max_objects, augmented_share) -> ComposedScenes:
    count_key, location_key, object_key, augment_key = jax.random.split(key, 4)
    count = jax.random.randint(count_key, (), 0, max_objects + 1)
    anywhere = jnp.zeros((1, canvas[0] * canvas[1]))
    pixel = locations.sample(location_key[None], anywhere, max_objects).index[0]
    windows = objects[jax.random.randint(object_key, (max_objects,), 0, len(objects))]
    augment_keys = jax.random.split(augment_key, max_objects)
    windows = warmup.augment(windows, augment_keys, augmented_share)
    used = jnp.arange(max_objects) < count
    windows = jnp.where(used[:, None, None, None], windows, 0)
    return ComposedScenes(_paint(windows, pixel, canvas), count, pixel, windows)


def _paint(windows: jax.Array, pixel: jax.Array, canvas: tuple[int, int]) -> jax.Array:
    """[H, W, C]: windows [S, h, h, C] around pixels [S], one in front of the other."""
    height, width = canvas
    side, channels = windows.shape[1], windows.shape[-1]
    image = jnp.zeros((height + side - 1, width + side - 1, channels))

    def paint(image, one):
        window, corner = one
        start = (corner // width, corner % width, 0)
        behind = lax.dynamic_slice(image, start, window.shape)
        is_own = window.max(-1, keepdims=True) > 0
        return lax.dynamic_update_slice(image, jnp.where(is_own, window, behind), start), None

    image, _ = lax.scan(paint, image, (windows, pixel))
    return image[side // 2 : side // 2 + height, side // 2 : side // 2 + width]


# --- training on them ----------------------------------------------------------


def appearance_loss(
    module: Trainee,
    objects: jax.Array,
    keys: chex.PRNGKey,
    max_neighbours: int,
    augmented_share: float,
) -> jax.Array:
    """-log q(z_app | z_loc, x) of an object among others, the mean over keys [B].

    The truth z_app is a sample of what q says of the object where it is alone.
    """
    window = 2 * module.lavae.appearance.radius + 1
    noise_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    alone, among = jax.vmap(
        lambda key: _surround(objects, key, window, max_neighbours, augmented_share)
    )(keys)
    read = lambda x: gaussian.from_features(module.lavae.appearance(x)[:, 0, 0])  # noqa: E731
    truth = jax.tree.map(lax.stop_gradient, read(alone))
    noise = jax.vmap(lambda key: jax.random.normal(key, truth.mean.shape[1:]))(noise_keys)
    z_app = gaussian.sample(truth, noise)
    return -gaussian.log_density(read(among), z_app).sum(-1).mean()


def _surround(objects, key, window, max_neighbours, augmented_share):
    """A window [w, w, C] with an object in its middle, alone, and among others."""
    side = objects.shape[1]
    wide = window + 2 * (side // 2)  # so that others reach in from outside
    front_key, key = jax.random.split(key)
    scene = _compose(objects, key, (wide, wide), 1 + max_neighbours, augmented_share)
    # The first object is in the middle. In a scene of none it is alone all the same.
    windows = scene.windows.at[0].set(jnp.where(scene.count > 0, scene.windows[0], objects[0]))
    pixel = scene.pixel.at[0].set(wide * (wide // 2) + wide // 2)
    in_front = jax.random.bernoulli(front_key)
    order = jnp.where(in_front, -1, 1) * jnp.arange(1 + max_neighbours)  # [0, -1, ...] or [0, 1...]
    middle = slice(side // 2, side // 2 + window)
    alone = _paint(windows[:1], pixel[:1], (wide, wide))[middle, middle]
    among = _paint(windows[order], pixel[order], (wide, wide))[middle, middle]
    return alone, among
