"""Training of q on scenes that the model composes, whose objects and locations are known.

The ELBO on data says little about scenes that are not in the data, such as many objects that
overlap. But the generative model can compose them: any number of objects, at locations from
p(z_loc | n), each with the appearance that it had alone in a training image. What q should infer
from such a scene is known exactly. Maximising log q of the truth minimises the forward KL,

    E_{p(x, z)} [-log q(z | x)] = E_{p(x)} [KL(p(z | x) || q(z | x))] + constant,

as in the sleep phase of wake-sleep (Hinton et al., 1995). The phases that use it are in
`curricula`.
"""

import itertools
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
from lavae_jax.training import distortions
from lavae_jax.training.phases import TrainingImages
from lavae_jax.training.trainee import Trainee

AMBIGUOUS = 0.2  # a pixel is ambiguous if a centre is at most this much more than half a pixel away

# --- objects that stand alone --------------------------------------------------


def isolated(
    settings: LavaeSettings, x: jax.Array, pixel: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Finds the detected objects that stand alone.

    A square around a detected pixel shows one whole object and nothing else if the square is not
    empty, no other object is within a sprite's size, and the pixels that surround the square are
    empty and on the canvas.

    Args:
        settings: LAVAE's settings.
        x: images, [B, H, W, C].
        pixel: indices of the detected pixels, [B, M], of which the first `count` are valid.
        count: the number of detected objects, [B].

    Returns:
        The squares of a sprite's size around the pixels, [B, M, h, h, C], and which of them show an
        isolated object, [B, M].
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
    """Collects the first isolated objects of the training images.

    Args:
        module: LAVAE and its settings.
        variables: its parameters and batch statistics.
        images: the training images.
        detect: (module, x) -> the objects' pixels [B, M] and their number [B] in images x.
        number: how many objects to return; if fewer are found, they repeat.

    Returns:
        The objects, [number, h, h, C].

    Raises:
        ValueError: if no object of the images is isolated.
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
    """B scenes of at most S objects each.

    Attributes:
        image: [B, H, W, C].
        count: the number of objects, [B].
        pixel: indices of the objects' pixels, [B, S], of which the first `count` are valid.
        windows: each object alone, centred in a square, [B, S, h, h, C].
    """

    image: jax.Array
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count
    pixel: jax.Array
    windows: jax.Array

    @property
    def marked(self) -> jax.Array:
        """Which pixels are locations of objects, bool [B, H, W]."""
        return self._marks(jnp.zeros(2, int))

    @property
    def ambiguous(self) -> jax.Array:
        """Which other pixels are nearly as close to the centre of an object, bool [B, H, W]."""
        close = jnp.zeros_like(self.marked)
        centre = jax.vmap(distortions.centre_of_mass)(self.windows)
        for step in itertools.product((-1, 0, 1), repeat=2):
            near = jnp.abs(centre - jnp.array(step)).max(-1) < 0.5 + AMBIGUOUS
            close |= self._marks(jnp.array(step), near)
        return close & ~self.marked

    def _marks(self, step: jax.Array, which: jax.Array | bool = True) -> jax.Array:
        """The pixels one step from those of some objects, bool [B, H, W]."""
        size, slots = self.pixel.shape
        height, width = self.image.shape[1:3]
        row, column = self.pixel // width + step[0], self.pixel % width + step[1]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        used = (jnp.arange(slots) < self.count[:, None]) & inside & which
        marks = jnp.zeros((size, height, width), bool)
        return marks.at[jnp.arange(size)[:, None], row, column].max(used)


def compose(
    objects: jax.Array,
    keys: chex.PRNGKey,
    canvas: tuple[int, int],
    max_objects: int,
    augmented_share: float,
    distorted_share: float = 0.0,
) -> ComposedScenes:
    """Composes a scene for each key.

    The number of objects is uniform on 0..S, and their locations are from p(z_loc | n). Where
    objects overlap, the last one is in front; in binary images of one colour, they form a union.

    Args:
        objects: isolated objects, [K, h, h, C].
        keys: [B].
        canvas: height and width of a scene.
        max_objects: S.
        augmented_share: the share of objects that are rotated and mirrored.
        distorted_share: the share of objects that are drawn in another way (see `distortions`).

    Returns:
        B scenes.
    """
    objects, shares = jnp.asarray(objects), (augmented_share, distorted_share)
    return jax.vmap(lambda key: _compose(objects, key, canvas, max_objects, *shares))(keys)


def _compose(
    objects, key, canvas, max_objects, augmented_share, distorted_share=0.0
) -> ComposedScenes:
    count_key, location_key, object_key, augment_key = jax.random.split(key, 4)
    count = jax.random.randint(count_key, (), 0, max_objects + 1)
    anywhere = jnp.zeros((1, canvas[0] * canvas[1]))
    pixel = locations.sample(location_key[None], anywhere, max_objects).index[0]
    windows = objects[jax.random.randint(object_key, (max_objects,), 0, len(objects))]
    augment_keys = jax.random.split(augment_key, max_objects)
    windows = warmup.augment(windows, augment_keys, augmented_share)
    if distorted_share:
        distort_keys = jax.random.split(jax.random.fold_in(augment_key, 1), max_objects)
        windows = distortions.distort(windows, distort_keys, distorted_share)
    used = jnp.arange(max_objects) < count
    windows = jnp.where(used[:, None, None, None], windows, 0)
    return ComposedScenes(_paint(windows, pixel, canvas), count, pixel, windows)


def _paint(windows: jax.Array, pixel: jax.Array, canvas: tuple[int, int]) -> jax.Array:
    """[H, W, C]: windows [S, h, h, C] around pixels [S], later ones in front of earlier ones."""
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
    """Computes -log q(z_app | z_loc, x) of objects that have neighbours.

    The target z_app is sampled from q(z_app | z_loc, x) of an image of the same object alone.

    Args:
        module: a bound LAVAE.
        objects: isolated objects, [K, h, h, C].
        keys: a key for each object of the loss, [B].
        max_neighbours: the largest number of neighbours of an object.
        augmented_share: the share of objects that are rotated and mirrored.

    Returns:
        The mean over the keys.
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
    """A window [w, w, C] with an object in its middle, without and with its neighbours."""
    side = objects.shape[1]
    wide = window + 2 * (side // 2)  # so that neighbours outside can reach into the window
    front_key, key = jax.random.split(key)
    scene = _compose(objects, key, (wide, wide), 1 + max_neighbours, augmented_share)
    # The first object is moved to the middle. An empty scene gets one object, without neighbours.
    windows = scene.windows.at[0].set(jnp.where(scene.count > 0, scene.windows[0], objects[0]))
    pixel = scene.pixel.at[0].set(wide * (wide // 2) + wide // 2)
    back_to_front = jnp.arange(1 + max_neighbours)
    order = jnp.where(jax.random.bernoulli(front_key), back_to_front[::-1], back_to_front)
    middle = slice(side // 2, side // 2 + window)
    alone = _paint(windows[:1], pixel[:1], (wide, wide))[middle, middle]
    among = _paint(windows[order], pixel[order], (wide, wide))[middle, middle]
    return alone, among
