"""Initialises the mixture p(z_app) with components at objects of the training images.

Each object of the training images is then assigned the components that were initialised at similar
objects, so that a training step evaluates only those (see `neighbours`).
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from lavae_jax import inference, model, neighbours, packing, placement, prior
from lavae_jax.locations import Locations
from lavae_jax.model import Variables
from lavae_jax.training import phases
from lavae_jax.training.phases import Prepared, TrainingImages
from lavae_jax.training.trainee import Trainee

CANDIDATES = 4  # objects per component that are collected, to choose different ones from them


class TrainingObjects(NamedTuple):
    """The objects that are found in B images.

    Attributes:
        located: q(z_loc | x) of the images.
        pixel: indices of the objects' pixels, [B, M].
        sketch: sketches of the windows around these pixels, [B, M, ...].
    """

    located: inference.LocationPosterior
    pixel: jax.Array
    sketch: jax.Array

    @property
    def is_object(self) -> np.ndarray:
        """[B, M]: which of the slots hold an object."""
        return np.arange(self.pixel.shape[1]) < np.asarray(self.located.count)[:, None]


def initial_saved(components: int) -> dict[str, np.ndarray]:
    """Makes arrays in the shapes of what `prepare` saves.

    Args:
        components: K.

    Returns:
        Zeros by name: "sketches", [K, neighbours.SKETCH_SIZE].
    """
    return {"sketches": np.zeros((components, neighbours.SKETCH_SIZE), np.float32)}


def prepare(
    module: Trainee,
    variables: Variables,
    images: TrainingImages,
    saved: dict[str, np.ndarray] | None,
    cache: dict[str, Any] | None = None,
    *,
    with_cache: bool,
) -> Prepared:
    """Places components at different training objects, and finds the components near each object.

    The sketches of the objects at which components are initialised are saved. A resumed run might
    not find the same objects: on other hardware, the location network's outputs may differ in their
    last digits.

    Args:
        module: LAVAE and its settings.
        variables: its parameters and batch statistics.
        images: the training images.
        saved: None when the phase begins; when a run resumes within it, what was saved then.
        cache: ignored, since it lacks the components near each object.
        with_cache: whether to cache q(z_loc | x) and the near components of all images.

    Returns:
        The prior's parameters when the phase begins, the sketches to save, and the cache, if any.

    Raises:
        ValueError: if the training images show fewer objects than there are components.
    """
    del cache  # it lacks the components near each object
    find, encode = (model.compiled(f, module) for f in (_find, _encode))
    size, with_cache = module.settings.prior.components, with_cache and not images.varies
    begins = saved is None
    encodings = [np.zeros((0, module.settings.latent_size), np.float32)]
    sketches = [np.zeros((0, neighbours.SKETCH_SIZE), np.float32)]
    all_objects: list[Any] = []

    def is_enough() -> bool:
        return not begins or sum(map(len, sketches)) >= CANDIDATES * size

    batches = images.batches() if begins or with_cache else ()
    for x in batches:
        objects = find(variables, x)
        if not is_enough():
            count, pixel = objects.located.count, objects.pixel
            # Padding repeats images, whose objects must not count again.
            left = len(images) - len(all_objects) * len(x)
            is_object = objects.is_object & (np.arange(len(x)) < left)[:, None]
            encoded = np.asarray(encode(variables, x, count, pixel))[: count.sum()]
            encodings.append(encoded[: is_object.sum()])
            sketches.append(np.asarray(objects.sketch)[is_object])
        elif not with_cache:
            break
        all_objects.append(jax.tree.map(np.asarray, objects) if with_cache else None)
    params: dict[str, Any] = {}
    if begins:
        params, saved = _components(np.concatenate(encodings), np.concatenate(sketches), size)
    if not with_cache:
        return Prepared(params, saved)
    assert saved is not None
    objects = phases.gather(all_objects, len(images))
    return Prepared(params, saved, {"located": _with_near(objects, saved["sketches"])})


def _find(module: Trainee, x: jax.Array) -> TrainingObjects:
    settings = module.settings
    detection = inference.detect(settings, inference.location_logits(module.lavae, x))
    pixel = inference.peak_locations(settings, detection).index
    image = np.repeat(np.arange(len(x)), pixel.shape[1])
    windows = placement.windows_at(x, pixel.reshape(-1), image, settings.sprite_size)
    sketch = neighbours.sketch(windows).reshape(*pixel.shape, -1)
    return TrainingObjects(inference.location_posterior(settings, detection), pixel, sketch)


def _encode(module: Trainee, x, count, pixel) -> jax.Array:
    """Means of q(z_app), [P, L], those of the objects first."""
    objects = packing.pack(count, pixel.size)
    return inference.appearance(module.lavae, x, Locations.hard(pixel), objects).mean


def _components(encodings: np.ndarray, sketches: np.ndarray, size: int) -> tuple[dict, dict]:
    """The prior's parameters, and sketches of the objects at which components are initialised."""
    encodings, sketches = (a[: CANDIDATES * size] for a in (encodings, sketches))
    if len(encodings) < size:
        raise ValueError(
            f"config.model.prior.components={size}, but only {len(encodings)} objects are found "
            "in all training images, and each component is initialised at one of them; set at most "
            "that many components"
        )
    chosen = neighbours.different(sketches, size)
    return {"lavae.prior": prior.at_encodings(encodings[chosen])}, {"sketches": sketches[chosen]}


def _with_near(objects: TrainingObjects, components: np.ndarray) -> inference.LocationPosterior:
    """Adds the components near each object: those initialised at similar objects."""
    is_object = objects.is_object
    number = min(neighbours.NEAR, len(components))
    near: Any = np.zeros((*is_object.shape, number), np.int32)
    near[is_object] = neighbours.nearest(np.asarray(objects.sketch)[is_object], components, number)
    return objects.located._replace(near=near)
