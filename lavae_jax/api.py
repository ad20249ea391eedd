"""Trained models, to be used: `load` one, then infer, render, edit and sample.

A model's methods take arrays of any length and go through them in batches, on all local
devices. Under `jax.jit` and `jax.grad`, where nothing is known but shapes, they compute
the whole batch at once: `jax.jit(model.render)` is a pure function.
"""

import dataclasses
import functools
import hashlib
import math
import operator
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from ml_collections import ConfigDict

from lavae_jax import (
    bernoulli,
    gaussian,
    generative,
    inference,
    model,
    objective,
    objects,
    prior,
    tiles,
    vae,
)
from lavae_jax.model import LAVAE, Variables
from lavae_jax.objective import Bound
from lavae_jax.scene import Scene
from lavae_jax.vae import GridVAE

Key = chex.PRNGKey | int
MOSTLY_LIT = 0.5  # the share of lit pixels above which objects are hardly on a black canvas
LOST = 0.75  # wrong pixels for each lit one above which a model does not know what it sees
LOOKED_AT = 64  # images to judge that by
LARGE = 1024 * 1024  # pixels above which an image is taken apart tile by tile

# --- inputs ------------------------------------------------------------------


def as_images(images, channels: int, least_pixels: int = 1) -> jax.Array | np.ndarray:
    """Images as float [B, H, W, C] in 0..1, or an error that says what is wrong."""
    if isinstance(images, jax.core.Tracer):
        return _as_traced_images(_as_batch(images, channels, least_pixels))
    images = _as_batch(np.asarray(images), channels, least_pixels)
    if images.dtype == np.uint8:
        if images.max(initial=0) == 1:
            warnings.warn(
                "these images are uint8 with a maximum of 1, which reads as nearly black: "
                "uint8 goes from 0 to 255. Use .astype(bool) if 1 means lit",
                stacklevel=3,
            )
        images = images.astype(np.float32) / 255
    elif np.issubdtype(images.dtype, np.integer) and np.isin(images, (0, 1)).all():
        images = images.astype(np.float32)
    elif images.dtype == bool or np.issubdtype(images.dtype, np.floating):
        images = images.astype(np.float32)
        low, high = images.min(initial=0), images.max(initial=0)
        if not (low >= 0 and high <= 1):  # nan is neither
            raise ValueError(
                f"images of type float reach from {images.min():g} to {images.max():g}, "
                "not from 0 to 1"
            )
    else:
        raise TypeError(
            f"images have type {images.dtype}; wanted are uint8 (0 to 255), float (0 to 1), "
            "bool, or whole numbers 0 and 1"
        )
    lit = images.mean() if images.size else 0.0
    if lit > MOSTLY_LIT:
        warnings.warn(
            f"{lit:.0%} of these images is lit; the model knows bright objects on a black "
            "canvas. If they are dark on white, use 1 - images (255 - images for uint8)",
            stacklevel=3,
        )
    return images


def _as_traced_images(images: jax.Array) -> jax.Array:
    """Under jit the type is known, and the values are not."""
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 255
    if images.dtype == bool or jnp.issubdtype(images.dtype, jnp.floating):
        return images.astype(jnp.float32)
    raise TypeError(f"images have type {images.dtype}; under jit, wanted are uint8, float or bool")


def _as_batch(images, channels: int, least_pixels: int):
    """One image is a batch of one."""
    shape = images.shape
    if channels == 1:
        wanted = "[B, H, W, 1], [B, H, W], [H, W, 1] or [H, W]"
        if len(shape) == 2 or (len(shape) == 3 and shape[-1] != 1):
            images = images[..., None]
    else:
        wanted = f"[B, H, W, {channels}] or [H, W, {channels}]"
    if images.ndim == 3:
        images = images[None]
    if images.ndim != 4 or images.shape[-1] != channels or 0 in images.shape[1:]:
        raise ValueError(f"images have shape {shape}; this model wants {wanted}")
    if images.shape[1] * images.shape[2] < least_pixels:
        raise ValueError(
            f"images of {images.shape[1]}x{images.shape[2]} have fewer pixels than the "
            f"{least_pixels} objects that this model places on different ones"
        )
    return images


def _image_keys(key: Key, places: Sequence[int]) -> chex.PRNGKey:
    """A key for the image at each place, whatever batches they come in."""
    key = _as_key(key)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(np.asarray(places, np.int32))


def _as_key(key: Key) -> chex.PRNGKey:
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    try:
        return jax.random.key(operator.index(key))
    except TypeError:
        raise TypeError(f"a key is a whole number or made by jax.random.key, not {key!r}") from None


def _is_traced(tree: Any) -> bool:
    """Whether this is under jit, or some array under grad."""
    return any(
        isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(tree), jnp.zeros(()))
    )


# --- batches -----------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _on_devices(function: Callable, module: nn.Module, num_inputs: int) -> Callable:
    """function(module, *inputs) on every local device, compiled."""
    in_axes = (None, *[0] * num_inputs)
    return jax.pmap(model.bind(function, module), in_axes=in_axes, devices=jax.local_devices())


def _in_batches(
    function: Callable,
    module: nn.Module,
    variables: Variables,
    inputs: tuple,
    batch_size: int,
    progress: str | None = None,
) -> Any:
    """function(module, *inputs) for trees of arrays of any length, on all local devices.

    Every device gets `batch_size` images at a time, or a smaller power of two if there are
    fewer; the last batch is filled up. So little is compiled and memory is bounded.
    Returns a tree of arrays on the host. `progress` is the title of a progress bar.
    """
    if _is_traced(inputs):
        return model.bind(function, module)(variables, *inputs)
    length, devices = len(jax.tree.leaves(inputs)[0]), jax.local_device_count()
    size = min(batch_size, 1 << max(0, math.ceil(math.log2(max(length / devices, 1)))))
    run = _on_devices(function, module, len(inputs))
    results = []
    starts = range(0, max(length, 1), size * devices)
    for start in tqdm.tqdm(starts, desc=progress, disable=progress is None, mininterval=1.0):
        index = np.minimum(np.arange(start, start + size * devices), max(length - 1, 0))

        def spread(a, index=index):
            batch = a[index] if length else jnp.zeros((len(index), *a.shape[1:]), a.dtype)
            return batch.reshape(devices, size, *a.shape[1:])

        out = run(variables, *jax.tree.map(spread, inputs))
        kept = min(len(index), length - start)
        results.append(
            jax.tree.map(lambda a, n=kept: np.asarray(a).reshape(-1, *a.shape[2:])[:n], out)
        )
    return jax.tree.map(lambda *a: np.concatenate(a), *results)


def by_shape(images: Mapping[int, np.ndarray]) -> list[list[int]]:
    """The numbers of images of one shape together, in the order of the images."""
    together: dict[tuple[int, ...], list[int]] = {}
    for i, image in images.items():
        together.setdefault(np.shape(image), []).append(i)
    return list(together.values())


# --- models ------------------------------------------------------------------


class _Trained:
    """What both kinds of model share."""

    def __init__(
        self, module: nn.Module, variables: Variables, config: ConfigDict, batch_size: int = 64
    ):
        self.module, self.variables, self.config = module, variables, config
        self.batch_size = batch_size
        self.folder: pathlib.Path | None = None  # that it was loaded from
        self.fingerprint = _fingerprint(variables)

    @property
    def settings(self):
        return self.module.settings

    def bound(
        self,
        images,
        num_samples: int = 100,
        key: Key = 0,
        places: Sequence[int] | None = None,
        progress: str | None = None,
        max_objects: int | None = None,
    ) -> Bound:
        """The importance-weighted bound on log p(x) of binary images, `log_p` [B].

        Beside it the ELBO's parts, means over samples. An image's random numbers are those
        of its place, which is 0, 1, ... unless `places` names others: so a part of a data set
        has the bounds that it has within the whole. `progress` is the title of a progress
        bar; without one there is none. There is room for `max_objects` in an image, or, if it
        is not given, for as many as are counted, which is the same bound in less time; for
        fewer, it is not.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples} must be at least 1")
        x = self._as_images(images)
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                "a likelihood needs binary images: 0 and 255 as uint8, 0 and 1 as float"
            )
        places = range(len(x)) if places is None else places
        if len(places) != len(x):
            raise ValueError(f"{len(places)} places for {len(x)} images; give one for each")
        # About ten times as many samples at once as images otherwise.
        size = max(1, 10 * self._images_at_once(x.shape[1:3]) // num_samples)
        function = self._bound_function(x, num_samples, max_objects)
        return self._run(function, x, _image_keys(key, places), batch_size=size, progress=progress)

    def _images_at_once(self, canvas: tuple[int, int]) -> int:
        """`batch_size` images of 64x64, and fewer that are larger."""
        return max(1, min(self.batch_size, self.batch_size * 64 * 64 // math.prod(canvas)))

    def _run(self, function, *inputs, batch_size: int | None = None, progress: str | None = None):
        batch_size = batch_size or self.batch_size
        return _in_batches(function, self.module, self.variables, inputs, batch_size, progress)

    def _as_images(self, images):
        return as_images(images, self.settings.channels)


class Model(_Trained):
    """A trained LAVAE.

    It knows objects like those that it was trained on: bright on a black canvas, of the
    same size in pixels (at most `settings.sprite_size`), not overlapping, whatever the
    size of the canvas.
    """

    module: LAVAE

    def infer(
        self, images, key: Key | None = None, max_objects: float | None = None
    ) -> Scene | list[Scene]:
        """Takes images [B, H, W, C] (or one, [H, W, C]) apart into objects.

        Pixels are uint8 (0 to 255), float (0 to 1) or bool. Locations are the peaks of
        h_loc that f_count counts, highest first, appearances the means of
        q(z_app | z_loc, x). With a key, both are a sample of q instead. A list of images of
        different sizes gives a list of scenes.

        At most `max_objects` are found in an image, or all if that is math.inf. If it is not
        given, it is M of the model, which bounds p(n) and not what h_loc can find.
        """
        if isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1:
            return self._infer_each(images, key, max_objects)
        x = self._as_images(images)
        traced = _is_traced((x, self.variables))
        if key is not None:
            if max_objects is not None:
                raise ValueError("a sample of q has at most M objects; give a key or max_objects")
            scene = self._run(inference.sample_scene, x, _image_keys(key, range(len(x))))
        else:
            scene, num_objects = self._infer_peaks(x, max_objects, traced)
            if not traced:
                _warn_if_cut(num_objects, scene.location.shape[1])
        scene = self._stamp(scene)
        if not traced:
            self._warn_if_lost(x[:LOOKED_AT], scene[:LOOKED_AT])
        return scene

    def location_probabilities(self, images) -> jax.Array:
        """[B, H, W]: the probability, by h_loc, that an object is located at a pixel."""
        x = self._as_images(images)
        if _is_large(x.shape[1:3]) and not _is_traced((x, self.variables)):
            return jax.nn.sigmoid(np.stack([self._logits_of_large(image) for image in x]))
        logits = self._run(_object_logits, x, batch_size=self._images_at_once(x.shape[1:3]))
        return jax.nn.sigmoid(logits)

    def num_objects(self, images) -> np.ndarray:
        """How many objects are found in each image, [B], however many that is."""
        x = self._as_images(images)
        if _is_large(x.shape[1:3]) and not _is_traced((x, self.variables)):
            return np.array([len(self._peaks_of_large(image)[0]) for image in x], np.int32)
        return self._run(_num_peaks, x, batch_size=self._images_at_once(x.shape[1:3]))

    def render(self, scene: Scene) -> jax.Array:
        """Pixel means [B, H, W, C]: the probability that a pixel is lit."""
        self._check(scene)
        if _is_large(scene.canvas) and not _is_traced((scene, self.variables)):
            return jnp.asarray(self._render_large(scene))
        size = self._images_at_once(scene.canvas)
        return jnp.asarray(self._run(generative.render, scene, batch_size=size))

    def sprites(self, scene: Scene) -> jax.Array:
        """What each object looks like, [B, M, h, w, C]; 0 where absent."""
        self._check(scene)
        return jnp.asarray(self._run(generative.sprites, scene))

    def measure(self, scene: Scene, images=None) -> list[list[objects.Measured]]:
        """Where each object's sprite is on its image, for each scene: centre of mass and box.

        With the images it was inferred from, brightness too: the mean of the pixels that the
        sprite covers. For images as they were before they were made binary, that says more.
        """
        sprites = np.asarray(self.sprites(scene))
        pictures = [None] * len(scene) if images is None else images
        if len(scene) == 1 and np.shape(pictures)[:2] == scene.canvas:
            pictures = [pictures]  # one image is a batch of one
        shapes = {np.shape(picture)[:2] for picture in pictures if picture is not None}
        if len(pictures) != len(scene) or shapes - {tuple(scene.canvas)}:
            raise ValueError(f"measure wants {len(scene)} images of {scene.canvas} pixels")
        return [
            objects.measure(scene[i], sprites[i], picture) for i, picture in enumerate(pictures)
        ]

    def sample(
        self,
        key: Key,
        num_scenes: int,
        count: Sequence[int] | None = None,
        canvas: tuple[int, int] = (64, 64),
    ) -> Scene:
        """Scenes from the prior. `count` replaces p(n) by the uniform over these values."""
        if num_scenes < 0:
            raise ValueError(f"num_scenes={num_scenes} must not be negative")
        inputs = [_image_keys(key, range(num_scenes))]
        if count is not None:
            values, most = np.unique(count), self.settings.max_objects
            if not len(values) or values.min() < 0 or values.max() > most:
                raise ValueError(f"count={count}: wanted are numbers from 0 to {most}")
            logits = np.where(np.isin(np.arange(most + 1), values), 0.0, -np.inf)
            inputs.append(np.tile(logits.astype(np.float32), (num_scenes, 1)))
        return self._stamp(self._run(_prior_scenes(tuple(canvas)), *inputs))

    def sample_appearances(self, noise, choice) -> jax.Array:
        """Appearances [..., L] from the prior: standard normal noise [..., L], and numbers
        [...] that are uniform in 0..1, made into them."""
        return prior.sample(self._prior, *(jnp.asarray(a, jnp.float32) for a in (noise, choice)))

    def appearance_moments(self) -> tuple[jax.Array, jax.Array]:
        """The mean and the standard deviation of p(z_app), [L] each."""
        return prior.moments(self._prior, self.settings.latent_size)

    def with_settings(self, **changes) -> "Model":
        """The same networks under other settings, such as support="pixels"."""
        settings = dataclasses.replace(self.settings, **changes)
        changed = Model(LAVAE(settings), self.variables, self.config, self.batch_size)
        changed.folder = self.folder
        return changed

    @property
    def _prior(self) -> prior.Mixture | None:
        return self.variables["params"]["prior"] if self.settings.prior.kind == "mixture" else None

    def _as_images(self, images):
        return as_images(images, self.settings.channels, self.settings.max_objects)

    def _bound_function(self, x, num_samples, most):
        if most is None:
            most = int(np.max(self._run(_count, x), initial=0))
        return _lavae_bound(num_samples, _round_up(most, self.settings.max_objects))

    def _infer_each(self, images, key: Key | None, max_objects: float | None) -> list[Scene]:
        """Images of different sizes; those of one size together."""
        scenes: dict[int, Scene] = {}
        for places in by_shape(dict(enumerate(images))):
            scene = self.infer(np.stack([images[i] for i in places]), key, max_objects)
            scenes |= {i: scene[k] for k, i in enumerate(places)}
        return [scenes[i] for i in range(len(images))]

    def _render_large(self, scene: Scene) -> np.ndarray:
        placed = zip(scene.count, np.asarray(self.sprites(scene)), scene.location, strict=True)
        intensity = [tiles.compose(s[:n], np.asarray(at[:n]), scene.canvas) for n, s, at in placed]
        return np.asarray(bernoulli.pixel_means(np.stack(intensity)))

    def _infer_peaks(
        self, x, max_objects: float | None, traced: bool
    ) -> tuple[Scene, np.ndarray | jax.Array]:
        """The scenes, and how many peaks there are, [B]."""
        slots = self.settings.max_objects if max_objects is None else max_objects
        if slots != math.inf and operator.index(slots) < 1:
            raise ValueError(f"max_objects={slots} must be at least 1")
        slots = slots if slots == math.inf else min(slots, math.prod(x.shape[1:3]))
        if _is_large(x.shape[1:3]) and not traced:
            return self._infer_large(x, slots)
        if slots == math.inf:
            if traced:
                raise ValueError("under jit, max_objects must be a number")
            most = int(self.num_objects(x).max(initial=1))
            slots = 1 << (most - 1).bit_length()  # so that little is compiled
        return self._run(_infer(slots), x, batch_size=self._images_at_once(x.shape[1:3]))

    def _infer_large(self, x: np.ndarray, slots: float) -> tuple[Scene, np.ndarray]:
        """As `inference.infer_and_count`, an image after the other."""
        found = [self._peaks_of_large(image) for image in x]
        num_peaks = np.array([len(peaks) for peaks, _ in found], np.int32)
        slots = int(num_peaks.max(initial=1)) if slots == math.inf else slots
        size, canvas = len(x), x.shape[1:3]
        pixel = np.zeros((size, slots), np.int32)
        score = np.zeros((size, slots), np.float32)
        appearance = np.zeros((size, slots, self.settings.latent_size), np.float32)
        for i, (peaks, odds) in enumerate(found):
            n = min(len(peaks), slots)
            pixel[i, :n] = peaks[:n] @ [canvas[1], 1]
            score[i, :n] = jax.nn.sigmoid(odds[:n])
            windows = tiles.windows(x[i], peaks[:n], self.settings.appearance.radius)
            appearance[i, :n] = self._run(_mean_appearances, windows)
        count = np.minimum(num_peaks, slots)
        return Scene.from_pixels(count, pixel, appearance, canvas, score), num_peaks

    def _logits_of_large(self, image: np.ndarray) -> np.ndarray:
        """The log odds [H, W] of objects in an image [H, W, C]."""

        def compute(tile):
            return self._run(_object_logits, tile)

        return tiles.logits(image, self.settings.location, compute)

    def _peaks_of_large(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The peaks of h_loc in an image [H, W, C], [n, 2], and their log odds [n]."""
        settings, logits = self.settings, self._logits_of_large(image)
        least = math.log(settings.counted_from / (1 - settings.counted_from))
        found = tiles.peaks(logits, least, settings.peak_radius)
        return found, logits[tuple(found.T)]

    def _stamp(self, scene: Scene) -> Scene:
        """The scene as JAX's arrays, with the name of the model whose appearances it has."""
        scene = jax.tree.map(jnp.asarray, scene)
        return dataclasses.replace(scene, model=self.fingerprint)

    def _check(self, scene: Scene) -> None:
        latent = scene.appearance.shape[-1]
        if latent != self.settings.latent_size:
            wanted = self.settings.latent_size
            raise ValueError(f"appearances have {latent} numbers; this model's have {wanted}")
        if scene.model not in (None, self.fingerprint):
            raise ValueError(
                f"this scene's appearances are those of another model ({scene.model}, this is "
                f"{self.fingerprint}): infer the scene with this one, or, if you know what you "
                "do, use dataclasses.replace(scene, model=None)"
            )

    def _warn_if_lost(self, x: np.ndarray, scene: Scene) -> None:
        """Objects of another kind or size than in training are taken for something else."""
        lit = x > 0.5
        wrong = (np.asarray(self.render(scene)) > 0.5) != lit
        share = wrong.sum() / max(lit.sum(), 1)
        if share > LOST and lit.mean() < MOSTLY_LIT:
            warnings.warn(
                "what the model found does not explain these images: rendered again, it differs "
                f"in {share:.0%} as many pixels as are lit. The model knows objects like those "
                f"that it was trained on, of up to {self.settings.sprite_size} pixels",
                stacklevel=3,
            )


class Baseline(_Trained):
    """A trained β-VAE."""

    module: GridVAE

    def reconstruct(self, images) -> jax.Array:
        """Pixel means [B, H, W, C]."""
        return jnp.asarray(self._run(vae.reconstruct, self._as_images(images)))

    def sample(self, key: Key, num_images: int, canvas: tuple[int, int] = (64, 64)) -> jax.Array:
        """Pixel means [B, H, W, C] of images from the prior."""
        keys = _image_keys(key, range(num_images))
        return jnp.asarray(self._run(_baseline_samples(canvas), keys))

    def _bound_function(self, x, num_samples, most):
        return _baseline_bound(num_samples)


def _warn_if_cut(num_objects: np.ndarray, slots: int) -> None:
    most = int(np.max(num_objects, initial=0))
    if most > slots:
        warnings.warn(
            f"{most} objects are found in an image, of which the {slots} likeliest are kept: use "
            f"infer(images, max_objects={most}), or math.inf for all",
            stacklevel=3,
        )


def _count(lavae: LAVAE, x: jax.Array) -> jax.Array:
    return inference.detect(lavae.settings, inference.location_logits(lavae, x)).count


def _num_peaks(lavae: LAVAE, x: jax.Array) -> jax.Array:
    return inference.detect(lavae.settings, inference.location_logits(lavae, x)).num_peaks


def _object_logits(lavae: LAVAE, x: jax.Array) -> jax.Array:
    return inference.object_logits(lavae.settings, inference.location_logits(lavae, x))


def _mean_appearances(lavae: LAVAE, windows: jax.Array) -> jax.Array:
    return gaussian.from_features(lavae.appearance(windows)[:, 0, 0]).mean


def _is_large(canvas: tuple[int, int]) -> bool:
    return math.prod(canvas) > LARGE


# Cached, so that the same sizes give the same function, which is compiled once.


@functools.lru_cache(maxsize=64)
def _infer(max_objects: int) -> Callable:
    return functools.partial(inference.infer_and_count, max_objects=max_objects)


@functools.lru_cache(maxsize=64)
def _lavae_bound(num_samples: int, num_slots: int) -> Callable:
    return functools.partial(objective.bound, num_samples=num_samples, num_slots=num_slots)


@functools.lru_cache(maxsize=64)
def _baseline_bound(num_samples: int) -> Callable:
    return functools.partial(vae.bound, num_samples=num_samples)


@functools.lru_cache(maxsize=64)
def _prior_scenes(canvas: tuple[int, int]) -> Callable:
    def draw(lavae, keys, count_logits=None):
        return generative.sample_prior(lavae, keys, canvas, count_logits)

    return draw


@functools.lru_cache(maxsize=64)
def _baseline_samples(canvas: tuple[int, int]) -> Callable:
    return functools.partial(vae.sample_prior, canvas=canvas)


def _round_up(count: int, most: int) -> int:
    """1, 3, 7 or M: few different numbers of slots, so that little is compiled."""
    return next((n for n in (1, 3, 7) if count <= n <= most), most)


def _fingerprint(variables: Variables) -> str:
    """A short name for these weights."""
    digest = hashlib.blake2b(digest_size=6)
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
