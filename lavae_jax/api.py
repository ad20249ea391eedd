"""Trained models: `load` one, then infer, render, edit and sample scenes.

A model takes raw images and applies the preprocessing that it was trained with. Its methods take
arrays of any length and process them in batches on all local devices. Under `jax.jit` and
`jax.grad`, where only shapes are known, `infer`, `render`, `sprites` and `bound` are pure functions
that compute the whole batch at once. Images must then be preprocessed: 0 or 1 for a binary model.
"""

import dataclasses
import functools
import hashlib
import math
import operator
import pathlib
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeGuard

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from ml_collections import ConfigDict

from lavae_jax import (
    batching,
    decomposition,
    duplicates,
    generative,
    inference,
    likelihoods,
    objective,
    objects,
    placement,
    prior,
    tiles,
    vae,
)
from lavae_jax.arrays import Array, Integers
from lavae_jax.batching import is_traced
from lavae_jax.decomposition import Detections, whole_number
from lavae_jax.model import LAVAE, Variables
from lavae_jax.objective import Bound
from lavae_jax.preprocessing import MOSTLY_FOREGROUND, ImageError, Preprocessing, is_binary
from lavae_jax.scene import Scene
from lavae_jax.settings import LavaeSettings
from lavae_jax.vae import GridVAE

Key = jax.Array | int  # a PRNG key, or the seed of one
MOSTLY_UNEXPLAINED = 0.5  # share of foreground far from all objects above which a warning is given
CHECKED_IMAGES = 64  # the largest number of images that are checked for warnings


# --- arguments ---------------------------------------------------------------


def _canvas(canvas: Any) -> tuple[int, int]:
    try:
        height, width = canvas
    except (TypeError, ValueError):
        raise ValueError(f"canvas={canvas!r} must be (height, width)") from None
    return whole_number("canvas height", height, 1), whole_number("canvas width", width, 1)


def _image_keys(key: Key, indices: Integers) -> jax.Array:
    """One key per image, derived from its index alone, so that batching makes no difference."""
    key = _as_key(key)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(np.asarray(indices, np.int32))


def _as_key(key: Key) -> jax.Array:
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    try:
        return jax.random.key(operator.index(key))
    except TypeError:
        raise TypeError(
            f"key={key!r} must be a whole number or made by jax.random.key (not by "
            "jax.random.PRNGKey)"
        ) from None
    except OverflowError:
        raise ValueError(f"key={key} has more than 64 bits") from None


def as_batch(images: Any, channels: int) -> Any:
    """Adds the batch and channel axes that images lack.

    Args:
        images: [B, H, W, C] or [H, W, C], with C = 1 or 3; [B, H, W] or [H, W].
        channels: C of the model; only error messages depend on it.

    Returns:
        [B, H, W, C]; B = 1 for one image.

    Raises:
        ImageError: the images have another shape.
    """
    shape = images.shape
    if len(shape) == 2 or (len(shape) == 3 and shape[-1] not in (1, 3)):
        images = images[..., None]  # [H, W] or [B, H, W]
    if images.ndim == 3:
        images = images[None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape[1:]:
        expected = "[B, H, W, C], [H, W, C]" + (", [B, H, W] or [H, W]" if channels == 1 else "")
        raise ImageError(f"images have shape {shape}; expected {expected}, with C = 1 or 3")
    return images


def _check_number_of_pixels(canvas: Sequence[int], least: int) -> None:
    if math.prod(canvas) < least:
        raise ImageError(
            f"images of {canvas[0]}x{canvas[1]} are too small: the model needs at least {least} "
            "pixels, one for each object"
        )


def _refuse_large(x: Array, purpose: str) -> None:
    """Refuses images for which maps of all pixels would not fit into memory."""
    if not is_traced(x) and tiles.is_large(x.shape[1:3]):
        raise ImageError(
            f"images of {x.shape[1]}x{x.shape[2]} are too large for {purpose}, which takes up to "
            f"{tiles.LARGE:,} pixels; cut them into parts"
        )


def _warn(message: str) -> None:
    """Emits a warning that points to the line that called this package."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 2
    package = __name__.partition(".")[0]
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


# --- models ------------------------------------------------------------------


class _Trained:
    """The common part of both kinds of model."""

    def __init__(
        self,
        module: nn.Module,
        variables: Variables,
        config: ConfigDict,
        batch_size: int = 64,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.module: nn.Module = module
        self.variables: Variables = variables
        self.config: ConfigDict = config
        self.batch_size: int = batch_size
        self.preprocessing: Preprocessing = preprocessing or Preprocessing.of_config(config)
        self.folder: pathlib.Path | None = None  # where it was loaded from
        self.fingerprint: str = _fingerprint(variables)

    @property
    def channels(self) -> int:
        """C, the number of channels of the images."""
        raise NotImplementedError

    def with_preprocessing(self, **changes: Any) -> Self:
        """Returns the same model with other preprocessing.

        Args:
            **changes: fields of `Preprocessing`, such as `invert`, `threshold` or `diameter`.

        Returns:
            A new model.
        """
        return self._changed(preprocessing=dataclasses.replace(self.preprocessing, **changes))

    def _changed(
        self, module: nn.Module | None = None, preprocessing: Preprocessing | None = None
    ) -> Self:
        changed = type(self)(
            module or self.module,
            self.variables,
            self.config,
            self.batch_size,
            preprocessing or self.preprocessing,
        )
        changed.folder = self.folder
        return changed

    # --- images ------------------------------------------------------------------

    def preprocess(self, images: npt.ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Converts raw images to what the model sees.

        A model of grey levels sees each image zoomed (see `normalisation`), so sizes may change.

        Args:
            images: [B, H, W, C], [B, H, W], one image, or a list of images of different sizes.
                Pixels are uint8 (0 to 255), uint16 (0 to 65535), float (0 to 1), bool, or whole
                numbers 0 and 1.

        Returns:
            [B, H, W, C], float32 from 0 to 1; a list of [H, W, C] for images of different sizes.

        Raises:
            ImageError: an image has an unexpected shape, type or range.
        """
        if not _is_list_of_arrays(images):
            return _stacked(self._see(as_batch(np.asarray(images), self.channels)))
        batches = [as_batch(np.asarray(image), self.channels) for image in images]
        if any(len(batch) != 1 for batch in batches):
            raise ImageError("a list has one image in each item; concatenate batches instead")
        return _stacked([self._see(batch)[0] for batch in batches])

    def _see(self, images: np.ndarray) -> np.ndarray | list[np.ndarray]:
        high = 255 if images.dtype == np.uint8 else 1
        is_as_seen = self.preprocessing.levels == "binary" and images.shape[-1] == self.channels
        if is_as_seen and is_binary(images, high):  # all at once
            seen = (images == high).astype(np.float32)
            return 1 - seen if self.preprocessing.invert else seen
        seen = [self.preprocessing(image, "an image") for image in images]
        return seen or np.zeros((0, *images.shape[1:3], self.channels), np.float32)

    def _seen_or_traced(self, images: Any) -> Any:
        """Preprocesses images; under jit, they must be preprocessed already."""
        if not isinstance(images, jax.core.Tracer):
            return self.preprocess(images)
        images = as_batch(images, self.channels)
        if images.shape[-1] != self.channels:
            raise ImageError(f"under jit, images must have the model's {self.channels} channels")
        if images.dtype == jnp.uint8:
            return images.astype(jnp.float32) / 255
        if images.dtype == bool or jnp.issubdtype(images.dtype, jnp.floating):
            return images.astype(jnp.float32)
        raise TypeError(f"images have type {images.dtype}; under jit, expected uint8, float, bool")

    # --- the bound ---------------------------------------------------------------

    def _bound(
        self,
        function: Callable,
        inputs: tuple,
        num_samples: int,
        key: Key,
        indices: Integers | None,
        progress: str | None,
    ) -> Bound:
        """Computes function(model, x, keys, ...) for the inputs (x, ...)."""
        x, *more = inputs
        indices = range(len(x)) if indices is None else indices
        if len(indices) != len(x):
            raise ValueError(f"{len(indices)} indices for {len(x)} images; give one for each")
        # A batch may have ten samples for each image that a batch of another method would have.
        at_once = decomposition.images_at_once(self.batch_size, x.shape[1:3])
        size = max(1, 10 * at_once // num_samples)
        inputs = (x, _image_keys(key, indices), *more)
        return self._run(function, *inputs, batch_size=size, progress=progress)

    def _of_one_size(self, images: npt.ArrayLike) -> Any:
        x = self._seen_or_traced(images)
        if isinstance(x, list):
            raise ImageError("images differ in size; expected images of one size")
        return x

    def _bound_images(self, images: npt.ArrayLike) -> Any:
        x = self._of_one_size(images)
        _refuse_large(x, "a bound")
        return x

    def _run(
        self, function: Callable, *inputs: Any, batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        batch_size = batch_size or self.batch_size
        return batching.in_batches(
            function, self.module, self.variables, inputs, batch_size, **kwargs
        )


def _stacked(seen: np.ndarray | list[np.ndarray]) -> np.ndarray | list[np.ndarray]:
    """Images of one size as one array."""
    if isinstance(seen, np.ndarray) or len({x.shape for x in seen}) > 1:
        return seen
    return np.stack(seen)


def _is_list_of_arrays(images: Any) -> TypeGuard[Sequence[Array]]:
    is_list = isinstance(images, (list, tuple)) and len(images) > 0
    return is_list and all(isinstance(image, (np.ndarray, jax.Array)) for image in images)


class Model(_Trained):
    """A trained LAVAE.

    It finds objects like those that it was trained on, up to `settings.sprite_size` pixels large,
    on a canvas of any size. Objects may overlap only if the model was trained on overlapping
    objects (see its model card).

    Attributes:
        module: the networks and their settings.
        variables: parameters and batch statistics.
        config: the config of the training run.
        batch_size: how many images of 64x64 are processed at once.
        preprocessing: applied to raw images.
        folder: where the model was loaded from, if it was.
        fingerprint: a hash of the weights.
    """

    module: LAVAE

    @property
    def settings(self) -> LavaeSettings:
        """The settings of the module."""
        return self.module.settings

    @property
    def channels(self) -> int:
        """C, the number of channels of the images."""
        return self.settings.channels

    def infer(
        self,
        images: npt.ArrayLike,
        key: Key | None = None,
        max_objects: float | None = None,
        min_score: float = 0.0,
    ) -> Scene | Any:
        """Decomposes images into objects.

        The locations are the peaks of h_loc that f_count counts, the most probable first, without
        second peaks of one object (see `duplicates`). The appearances are the means of
        q(z_app | z_loc, x). Where objects may hide others (composition "over", in colour), they are
        ordered from back to front. With a key, locations and appearances are a sample of q instead.
        If a key is given, or under jit, second peaks are kept, and objects are not sorted by depth.

        Args:
            images: raw images; see `preprocess`.
            key: a PRNG key or an integer seed; if given, the result is a sample of q.
            max_objects: the largest number of objects in an image. By default there is no limit;
                under jit and with a key, it is the M of p(n).
            min_score: the minimum probability of an object; less probable ones are left out.

        Returns:
            A scene with B images; a list of scenes for images of different sizes.

        Raises:
            ImageError: an image has an unexpected shape, type or range.
            ValueError: `max_objects` or `min_score` is out of range, or given together with a key;
                or `min_score` is given under jit.
        """
        # Any stands for list[Scene], which every caller would otherwise have to rule out.
        x = self._seen_or_traced(images)
        traced = is_traced((x, self.variables))
        limit = math.inf if max_objects is None else max_objects
        decomposition.check_limits(limit, min_score)
        if key is not None:
            if max_objects is not None or min_score:
                raise ValueError("a sample of q takes neither max_objects nor min_score")
            if isinstance(x, list):
                return [self._sample_posterior(x[i][None], key, [i]) for i in range(len(x))]
            return self._sample_posterior(x, key, range(len(x)))
        if traced:
            return self._infer_traced(x, max_objects, min_score)
        detected = self._detect(x, keep_maps=False)
        self._warn_if_implausible(x, detected)
        selected, appearance = self._select_and_describe(x, detected, limit, min_score)
        slots = None if limit == math.inf else int(limit)
        if isinstance(x, list):
            both = zip(selected, appearance, strict=True)
            return [self._to_scene([one], [z], slots) for one, z in both]
        return self._to_scene(selected, appearance, slots, x.shape[1:3])

    def detect(self, images: npt.ArrayLike, keep_maps: bool = False) -> list[Detections]:
        """Finds the locations of objects; see `decomposition.detect`.

        Args:
            images: raw images; see `preprocess`.
            keep_maps: whether to return the log-odds of an object at every pixel, too.

        Returns:
            The detections in each image.
        """
        return self._detect(self.preprocess(images), keep_maps)

    def decompose(
        self,
        x: decomposition.Images,
        max_objects: float = math.inf,
        min_score: float = 0.0,
        keep_maps: bool = False,
    ) -> tuple[list[Detections], list[np.ndarray]]:
        """Detects, selects and describes the objects of preprocessed images.

        Args:
            x: preprocessed images [H, W, C] of any size.
            max_objects: the largest number of objects in an image.
            min_score: the least probability of an object.
            keep_maps: whether to return the log-odds of an object at every pixel, too.

        Returns:
            For each image, its objects, in the order of `infer`, and their mean appearances [n, L].
        """
        return self._select_and_describe(x, self._detect(x, keep_maps), max_objects, min_score)

    def _select_and_describe(
        self,
        x: decomposition.Images,
        detected: Sequence[Detections],
        max_objects: float,
        min_score: float,
    ) -> tuple[list[Detections], list[np.ndarray]]:
        resolves = self.settings.resolve_radius > 0
        most = math.inf if resolves else max_objects
        selected = [decomposition.select(one, most, min_score) for one in detected]
        described = decomposition.describe(self._run, self.settings, x, selected)
        if resolves:
            selected, described = duplicates.drop(self._run, self.settings, x, selected, described)
            selected = [decomposition.select(one, max_objects) for one in selected]
        both = zip(selected, described, strict=True)
        means = [appearances.mean[: len(one.location)] for one, appearances in both]
        if self.settings.composition == "over" and self.channels > 1:
            return self._arrange(x, selected, means)
        return selected, means

    def _arrange(
        self,
        x: decomposition.Images,
        detected: Sequence[Detections],
        appearance: Sequence[np.ndarray],
    ) -> tuple[list[Detections], list[np.ndarray]]:
        """Sorts objects and appearances from back to front."""
        latents = np.zeros((0, self.settings.latent_size), np.float32)
        decoded = self.decode(np.concatenate([latents, *appearance]))
        sprites = decomposition.split(decoded, [len(z) for z in appearance])
        order = [
            decomposition.depth_order(drawn, one.location, image)
            for drawn, one, image in zip(sprites, detected, x, strict=True)
        ]
        ordered = [
            one._replace(location=one.location[k], log_odds=one.log_odds[k])
            for one, k in zip(detected, order, strict=True)
        ]
        return ordered, [z[k] for z, k in zip(appearance, order, strict=True)]

    def _detect(self, x: decomposition.Images, keep_maps: bool) -> list[Detections]:
        return decomposition.detect(self._run, self.settings, x, self.batch_size, keep_maps)

    def location_probabilities(self, images: npt.ArrayLike) -> np.ndarray:
        """Computes the probability that an object is located at a pixel.

        Args:
            images: raw images of one size; see `preprocess`.

        Returns:
            [B, H, W], of the pixels that the model sees.
        """
        detected = self.detect(images, keep_maps=True)
        maps = [one.log_odds_map for one in detected if one.log_odds_map is not None]
        return np.asarray(jax.nn.sigmoid(np.stack(maps)))

    def bound(
        self,
        images: npt.ArrayLike,
        num_samples: int = 100,
        key: Key = 0,
        indices: Integers | None = None,
        progress: str | None = None,
        max_objects: int | None = None,
    ) -> Bound:
        """Computes the importance-weighted bound on log p(x), and the terms of the ELBO.

        Args:
            images: raw images [B, H, W, C]; x is what the model sees of them.
            num_samples: importance samples. The terms are means over them.
            key: a PRNG key or an integer seed.
            indices: [B], from which each image's random numbers are derived; by default 0, 1, ...
                Pass the indices in the data set if the bound of an image must not depend on which
                other images are passed.
            progress: the title of a progress bar; by default there is none.
            max_objects: slots for each image; by default, enough for the largest inferred count. If
                an image has more objects, the result is not a bound.

        Returns:
            `log_p` [B] in nats, and `terms`, [B] each.

        Raises:
            ImageError: the images differ in size, or are too large for a bound.
        """
        num_samples = whole_number("num_samples", num_samples, 1)
        x = self._bound_images(images)
        _check_number_of_pixels(x.shape[1:3], self.settings.max_objects)
        most = self.settings.max_objects
        if is_traced(x):
            bound = _lavae_bound(num_samples, max_objects or most)
            return self._bound(bound, (x,), num_samples, key, indices, progress)
        resolves = self.settings.resolve_radius > 0 and self.settings.support == "peaks"
        detected = []
        if resolves:
            detected = self.decompose(x, most)[0]
        elif max_objects is None:
            detected = self._detect(x, keep_maps=False)
        if max_objects is None:
            max_objects = max((len(one.location) for one in detected), default=0)
        slots = _round_up(max_objects, most)
        inputs = (x, _posterior(detected, slots)) if resolves else (x,)
        bound = _lavae_bound(num_samples, slots)
        return self._bound(bound, inputs, num_samples, key, indices, progress)

    def render(self, scene: Scene) -> jax.Array:
        """Renders scenes.

        Args:
            scene: B scenes.

        Returns:
            Pixel means [B, H, W, C]; of a binary model, the probabilities of foreground.

        Raises:
            ValueError: the appearances are those of another model.
        """
        self._check(scene)
        if tiles.is_large(scene.canvas) and not is_traced((scene, self.variables)):
            return jnp.asarray(self._render_large(scene))
        size = decomposition.images_at_once(self.batch_size, scene.canvas)
        return jnp.asarray(self._run(generative.render, scene, batch_size=size))

    def sprites(self, scene: Scene) -> jax.Array:
        """Decodes the sprite of each object.

        Args:
            scene: B scenes with M slots.

        Returns:
            [B, M, h, w, C], pixel means; 0 where absent.

        Raises:
            ValueError: the appearances are those of another model.
        """
        self._check(scene)
        if is_traced((scene, self.variables)):
            return self._run(generative.sprites, scene)
        present = np.asarray(scene.present)
        drawn = self.decode(np.asarray(scene.appearance)[present])
        sprites = np.zeros((*present.shape, *drawn.shape[1:]), np.float32)
        sprites[present] = drawn
        return jnp.asarray(sprites)

    def decode(self, z_app: np.ndarray) -> np.ndarray:
        """Decodes appearances.

        Args:
            z_app: [n, L].

        Returns:
            The sprites [n, h, w, C].
        """
        return decomposition.decode(self._run, z_app)

    def measure(
        self, scene: Scene, images: npt.ArrayLike | None = None
    ) -> list[list[objects.Measured]]:
        """Measures each object's sprite on its image: centre of mass, box, brightness.

        Args:
            scene: B scenes.
            images: [B, H, W] or [B, H, W, C], for the brightness of objects: the mean of the pixels
                that the object's sprite covers. They have the size of the canvas. For a model of
                grey levels, which sees zoomed images, they may have their original size, in whose
                pixels objects are then measured.

        Returns:
            For each scene, its objects.
        """
        if is_traced(scene):
            raise TypeError("`measure` returns plain numbers; call it outside of jit")
        sprites = np.asarray(self.sprites(scene))
        pictures: Any = [None] * len(scene) if images is None else images
        if len(scene) == 1 and np.shape(pictures)[:2] == scene.canvas:
            pictures = [pictures]  # one image is a batch of one
        shapes = {np.shape(picture)[:2] for picture in pictures if picture is not None}
        is_zoomed = self.preprocessing.levels == "grey"
        if len(pictures) != len(scene) or (shapes - {tuple(scene.canvas)} and not is_zoomed):
            raise ValueError(
                f"measure expects {len(scene)} images of {scene.canvas} pixels, not "
                f"{len(pictures)} of {', '.join(map(str, sorted(shapes)))}"
            )
        count, location = np.asarray(scene.count), np.asarray(scene.location)
        score = np.ones(location.shape[:2]) if scene.score is None else np.asarray(scene.score)
        likelihood = likelihoods.of(self.settings)
        return [
            objects.measure(
                location[b, :n],
                sprites[b, :n],
                score[b, :n],
                scene.canvas,
                pictures[b],
                likelihood,
                None if pictures[b] is None else np.shape(pictures[b])[:2],
            )
            for b, n in enumerate(count)
        ]

    def sample(
        self,
        key: Key,
        num_scenes: int,
        count: Integers | None = None,
        canvas: tuple[int, int] = (64, 64),
    ) -> Scene:
        """Samples scenes from the prior.

        Args:
            key: a PRNG key or an integer seed.
            num_scenes: B.
            count: the possible values of n, all equally likely; by default, n is drawn from p(n).
            canvas: height and width.

        Returns:
            B scenes with M slots.
        """
        num_scenes = whole_number("num_scenes", num_scenes, 0)
        canvas = _canvas(canvas)
        _check_number_of_pixels(canvas, self.settings.max_objects)
        inputs: list[Array] = [_image_keys(key, range(num_scenes))]
        if count is not None:
            values, most = np.unique(count), self.settings.max_objects
            is_whole = np.issubdtype(values.dtype, np.integer)
            if not len(values) or not is_whole or values.min() < 0 or values.max() > most:
                raise ValueError(f"count={count}: expected whole numbers from 0 to {most}")
            logits = np.where(np.isin(np.arange(most + 1), values), 0.0, -np.inf)
            inputs.append(np.tile(logits.astype(np.float32), (num_scenes, 1)))
        return self._stamp(self._run(_prior_scenes(canvas), *inputs))

    def sample_appearances(self, noise: npt.ArrayLike, choice: npt.ArrayLike) -> jax.Array:
        """Samples appearances from the prior, as a function of random numbers.

        Args:
            noise: [..., L], standard normal.
            choice: [...], uniform in [0, 1); it selects the component of a mixture.

        Returns:
            [..., L].
        """
        return prior.sample(self._prior, *(jnp.asarray(a, jnp.float32) for a in (noise, choice)))

    def appearance_moments(self) -> tuple[jax.Array, jax.Array]:
        """Computes the moments of p(z_app).

        Returns:
            The mean and the standard deviation, [L] each.
        """
        return prior.moments(self._prior, self.settings.latent_size)

    def with_settings(self, **changes: Any) -> "Model":
        """Returns the same networks with other settings.

        Args:
            **changes: fields of `LavaeSettings`, such as support="pixels".

        Returns:
            A new model.

        Raises:
            ValueError: `max_objects` would change; it is the support of p(n), which was learned.
        """
        if changes.get("max_objects", self.settings.max_objects) != self.settings.max_objects:
            raise ValueError(
                "max_objects is the support of p(n), which was learned; to find more objects, call "
                "infer, which has no limit"
            )
        return self._changed(module=LAVAE(dataclasses.replace(self.settings, **changes)))

    @property
    def _prior(self) -> prior.Mixture | None:
        return self.variables["params"]["prior"] if self.settings.prior.kind == "mixture" else None

    def _infer_traced(self, x: jax.Array, max_objects: Any, min_score: float) -> Scene:
        _check_number_of_pixels(x.shape[1:3], self.settings.max_objects)
        if max_objects == math.inf or min_score:
            raise ValueError("under jit, max_objects must be a number and min_score 0")
        function = _infer(max_objects or self.settings.max_objects)
        return self._stamp(self._run(function, x))

    def _sample_posterior(self, x: Array, key: Key, indices: Integers) -> Scene:
        _check_number_of_pixels(x.shape[1:3], self.settings.max_objects)
        _refuse_large(x, "a sample of q")
        size = decomposition.images_at_once(self.batch_size, x.shape[1:3])
        keys = _image_keys(key, indices)
        return self._stamp(self._run(inference.sample_scene, x, keys, batch_size=size))

    def _to_scene(
        self,
        detected: Sequence[Detections],
        appearance: Sequence[np.ndarray],
        slots: int | None,
        canvas: tuple[int, int] | None = None,
    ) -> Scene:
        """Makes scenes with `slots` slots; by default as many as are needed, and at least M."""
        canvas = canvas or detected[0].canvas
        count = np.array([len(one.location) for one in detected], np.int32)
        slots = slots or max(self.settings.max_objects, int(count.max(initial=0)))
        slots = min(slots, math.prod(canvas))
        location = np.full((len(count), slots, 2), -1, np.int32)
        score = np.zeros((len(count), slots), np.float32)
        z_app = np.zeros((len(count), slots, self.settings.latent_size), np.float32)
        for b, (one, z) in enumerate(zip(detected, appearance, strict=True)):
            location[b, : count[b]], score[b, : count[b]] = one.location, one.score
            z_app[b, : count[b]] = z
        on_host: Any = (count, location, z_app, canvas, None, score)
        return self._stamp(Scene(*on_host))

    def _render_large(self, scene: Scene) -> np.ndarray:
        count, location = np.asarray(scene.count), np.asarray(scene.location)
        sprites = np.asarray(self.sprites(scene))
        total = [
            placement.compose(
                sprites[b, :n], location[b, :n], scene.canvas, self.settings.composition
            )
            for b, n in enumerate(count)
        ]
        intensity: Any = np.stack(total)
        return np.asarray(likelihoods.of(self.settings).pixel_means(intensity))

    def _stamp(self, scene: Scene) -> Scene:
        """Returns the scene as JAX arrays, with the fingerprint of this model."""
        scene = jax.tree.map(jnp.asarray, scene)
        return dataclasses.replace(scene, model_fingerprint=self.fingerprint)

    def _check(self, scene: Scene) -> None:
        latent = scene.appearance.shape[-1]
        if latent != self.settings.latent_size:
            expected = self.settings.latent_size
            raise ValueError(
                f"the scene's appearances have {latent} latent dimensions, but this model's have "
                f"{expected}: infer the scene with this model"
            )
        if scene.model_fingerprint not in (None, self.fingerprint):
            raise ValueError(
                f"this scene's appearances are those of another model ({scene.model_fingerprint}, "
                f"this is {self.fingerprint}): infer the scene with this one, or, to skip this "
                "check, use dataclasses.replace(scene, model_fingerprint=None)"
            )

    def _warn_if_implausible(self, x: decomposition.Images, detected: Sequence[Detections]) -> None:
        """Warns of images that are probably inverted, and of foreground far from all objects."""
        likelihood, half = likelihoods.of(self.settings), self.settings.sprite_size // 2
        foreground = unexplained = pixels = 0
        for image, one in zip(x[:CHECKED_IMAGES], detected, strict=False):
            is_foreground: np.ndarray = np.any(likelihood.is_foreground(image), axis=-1)
            pixels += is_foreground.size
            foreground += is_foreground.sum()
            for row, column in one.location:
                reach = (slice(max(at - half, 0), at + half + 1) for at in (row, column))
                is_foreground[tuple(reach)] = False
            unexplained += is_foreground.sum()
        if foreground > MOSTLY_FOREGROUND * pixels:
            _warn(
                f"{foreground / pixels:.0%} of the pixels are foreground, but the model expects "
                "bright objects on a dark background. If yours are dark, use "
                "model.with_preprocessing(invert=True)"
            )
        elif unexplained > MOSTLY_UNEXPLAINED * foreground:
            _warn(
                f"{unexplained / foreground:.0%} of the foreground of these images is out of reach "
                f"of every detected object (more than {half} pixels away). The model finds only "
                "objects like those that it was trained on, of up to "
                f"{self.settings.sprite_size} pixels"
            )


class Baseline(_Trained):
    """A trained β-VAE.

    Attributes:
        module: the networks.
        variables: parameters and batch statistics.
        config: the config of the training run.
        batch_size: how many images of 64x64 are processed at once.
        preprocessing: applied to raw images.
        folder: where the model was loaded from, if it was.
        fingerprint: a hash of the weights.
    """

    module: GridVAE

    @property
    def channels(self) -> int:
        """C, the number of channels of the images."""
        return self.module.channels

    def bound(
        self,
        images: npt.ArrayLike,
        num_samples: int = 100,
        key: Key = 0,
        indices: Integers | None = None,
        progress: str | None = None,
    ) -> Bound:
        """Computes the importance-weighted bound on log p(x), and the terms of the ELBO.

        Args:
            images: raw images [B, H, W, C]; x is what the model sees of them.
            num_samples: importance samples. The terms are means over them.
            key: a PRNG key or an integer seed.
            indices: [B], from which each image's random numbers are derived; see `Model.bound`.
            progress: the title of a progress bar; by default there is none.

        Returns:
            `log_p` [B] in nats, and `terms`, [B] each.

        Raises:
            ImageError: the images differ in size, or are too large for a bound.
        """
        num_samples = whole_number("num_samples", num_samples, 1)
        x = self._bound_images(images)
        bound = _baseline_bound(num_samples)
        return self._bound(bound, (x,), num_samples, key, indices, progress)

    def reconstruct(self, images: npt.ArrayLike) -> jax.Array:
        """Reconstructs images.

        Args:
            images: raw images of one size; see `preprocess`.

        Returns:
            Pixel means [B, H, W, C].
        """
        return jnp.asarray(self._run(vae.reconstruct, self._of_one_size(images)))

    def sample(self, key: Key, num_images: int, canvas: tuple[int, int] = (64, 64)) -> jax.Array:
        """Samples images from the prior.

        Args:
            key: a PRNG key or an integer seed.
            num_images: B.
            canvas: height and width.

        Returns:
            Pixel means [B, H, W, C].
        """
        keys = _image_keys(key, range(whole_number("num_images", num_images, 0)))
        return jnp.asarray(self._run(_baseline_samples(_canvas(canvas)), keys))


# Cached: the same sizes give the same function, which is compiled once.


@functools.lru_cache(maxsize=64)
def _infer(max_objects: int) -> Callable:
    return functools.partial(inference.infer, max_objects=max_objects)


@functools.lru_cache(maxsize=64)
def _lavae_bound(num_samples: int, num_slots: int) -> Callable:
    def bound(
        lavae: LAVAE,
        x: jax.Array,
        keys: jax.Array,
        located: inference.LocationPosterior | None = None,
    ) -> Bound:
        return objective.bound(lavae, x, keys, num_samples, num_slots, located)

    return bound


@functools.lru_cache(maxsize=64)
def _baseline_bound(num_samples: int) -> Callable:
    return functools.partial(vae.bound, num_samples=num_samples)


@functools.lru_cache(maxsize=64)
def _prior_scenes(canvas: tuple[int, int]) -> Callable:
    def draw(lavae: LAVAE, keys: jax.Array, count_logits: jax.Array | None = None) -> Scene:
        return generative.sample_prior(lavae, keys, canvas, count_logits)

    return draw


@functools.lru_cache(maxsize=64)
def _baseline_samples(canvas: tuple[int, int]) -> Callable:
    return functools.partial(vae.sample_prior, canvas=canvas)


def _posterior(detected: Sequence[Detections], slots: int) -> inference.LocationPosterior:
    """q(n | x) and q(z_loc | n, x) for given detections: every order of them is equally likely.

    If an image has more detections than there are slots, only the first ones are used.
    """
    count = np.array([min(len(one.location), slots) for one in detected], np.int32)
    pixel = np.zeros((len(detected), slots), np.int32)
    for b, one in enumerate(detected):
        rows, columns = one.location[: count[b]].T
        pixel[b, : count[b]] = rows * one.canvas[1] + columns
    is_peak = np.arange(slots) < count[:, None]
    logits = np.where(is_peak, 0, -inference.OFF_PEAK).astype(np.float32)
    on_host: Any = (count, logits, pixel)
    return inference.LocationPosterior(*on_host)


def _round_up(count: int, most: int) -> int:
    """Rounds a count up to 1, 3, 7 or M, so that few programs are compiled."""
    return next((n for n in (1, 3, 7) if count <= n <= most), most)


def _fingerprint(variables: Variables) -> str:
    """A short hash of the weights."""
    digest = hashlib.blake2b(digest_size=6)
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
        # The earlier name, so that scenes saved by earlier versions still belong to their model.
        name = jax.tree_util.keystr(path).replace("count_logits", "count")
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
