"""Answers the page's requests to models, as functions of plain data, several at a time.

Every function takes a list of requests of one kind and returns a list of answers: JSON, with arrays
of bytes in base64. A request that cannot be answered raises a `Refused` with an explanation;
nothing else about the program reaches the page.
"""

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

from lavae_jax import decomposition, likelihoods
from lavae_jax.api import Model
from lavae_jax.scene import Scene

Json = dict[str, Any]

SIZE = 4  # requests in a batch; smaller batches are padded, so that only one size is compiled
FEWEST_SLOTS = 16  # slots for objects in a scene; M if that is larger
USUAL_CANVAS = 64  # pixels
LARGEST = 10_000  # the largest number in a location or an appearance
SAMPLES = 20  # importance samples of the bound
DIRECTIONS = 6  # of appearances; each has a slider
ENCODED = 256  # scenes from whose encodings the directions are computed


class Refused(Exception):
    """A request cannot be answered; the message is for the client."""


# --- plain data --------------------------------------------------------------


def to_base64(array: np.ndarray) -> str:
    """Encodes the bytes of an array.

    Args:
        array: an array of any type and shape.

    Returns:
        The bytes in base64.
    """
    return base64.b64encode(np.ascontiguousarray(array).data).decode()


def as_bytes(values: np.ndarray) -> str:
    """Encodes numbers from 0 to 1 as one byte each.

    Args:
        values: numbers of any shape; those out of range are clipped.

    Returns:
        The bytes in base64.
    """
    return to_base64(np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8))


def pack(image: np.ndarray) -> Json:
    """Packs a binary image, eight pixels in a byte.

    Args:
        image: [H, W, C], 0 or 1.

    Returns:
        `height`, `width`, `channels`, and `bits` in base64.
    """
    height, width, channels = image.shape
    bits = to_base64(np.packbits(image.astype(bool).reshape(-1)))
    return {"height": height, "width": width, "channels": channels, "bits": bits}


def unpack(content: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Unpacks an image; the inverse of `pack`.

    Args:
        content: the packed image, from a client.
        shape: the expected [H, W, C].

    Returns:
        [H, W, C], float32, 0 or 1.

    Raises:
        Refused: the content is not an image of this shape.
    """
    if not isinstance(content, dict):
        raise Refused("There is no image in the request.")
    if tuple(content.get(side) for side in ("height", "width", "channels")) != shape:
        height, width, channels = shape
        raise Refused(f"This model's images have {height}x{width} pixels and {channels} channels.")
    size = math.prod(shape)
    bits = np.unpackbits(_bytes(content.get("bits"), -(-size // 8)), count=size)
    return bits.reshape(shape).astype(np.float32)


def _bytes(text: Any, length: int) -> np.ndarray:
    """Decodes base64 to bytes [length]."""
    try:
        content = base64.b64decode(text or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Refused("The image cannot be read.") from None
    if len(content) != length:
        raise Refused(f"The image has {len(content)} bytes; expected {length}.")
    return np.frombuffer(content, np.uint8)


def _sides(shape: tuple[int, ...]) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("height", shape[0]), ("width", shape[1])


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"{name} must be a whole number from {least} to {most}.")
    return value


def _seed(request: Json) -> int:
    return _whole(request.get("seed"), "seed", 0, 2**31 - 1)


def _vector(value: Any, name: str, length: int) -> np.ndarray:
    is_list = isinstance(value, list) and all(type(number) in (int, float) for number in value)
    try:
        vector = np.array(value if is_list else [], np.float64)
    except OverflowError:
        vector = np.empty(0)
    if vector.shape != (length,) or not (np.abs(vector) < LARGEST).all():
        raise Refused(f"{name} must be {length} numbers between -{LARGEST} and {LARGEST}.")
    return vector


# --- the models --------------------------------------------------------------


class Engine:
    """Models that answer requests.

    Attributes:
        models: trained LAVAEs by name; all of them expect bright objects.
    """

    def __init__(
        self,
        models: dict[str, Model],
        draw: Callable[[str, int, int], np.ndarray | None] = lambda name, count, seed: None,
    ):
        """Prepares to answer requests; no model is compiled yet.

        Args:
            models: trained LAVAEs by name.
            draw: `draw(name, count, seed)` makes a new scene [H, W, C], or None for a model without
                a data set.
        """
        self._draw = draw
        self._preprocessing = {name: model.preprocessing for name, model in models.items()}
        # The page sends preprocessed images; only files are raw (see `preprocess`).
        self.models = {n: model.with_preprocessing(invert=False) for n, model in models.items()}
        self._about: dict[str, Json] = {}
        self._canvases: dict[str, tuple[int, int]] = {}

    def names(self) -> list[str]:
        """Lists the models.

        Returns:
            Their names.
        """
        return list(self.models)

    def model(self, name: Any) -> Model:
        """Looks a model up.

        Args:
            name: the name, as sent by a client.

        Returns:
            The model.

        Raises:
            Refused: there is no such model.
        """
        if not isinstance(name, str) or name not in self.models:
            raise Refused(f"There is no such model; expected one of {', '.join(self.models)}.")
        return self.models[name]

    @staticmethod
    def _slots(model: Model) -> int:
        return max(FEWEST_SLOTS, model.settings.max_objects)

    def canvas(self, name: str) -> tuple[int, int]:
        """Returns the canvas of a model: that of training, so that no other size is compiled.

        Args:
            name: name of a model.

        Returns:
            Height and width.
        """
        if name not in self._canvases:
            drawn = self._draw(name, 0, 0)
            side = self.models[name].config.dataset.get("canvas", USUAL_CANVAS)
            self._canvases[name] = (side, side) if drawn is None else drawn.shape[:2]
        return self._canvases[name]

    def _shape(self, name: str) -> tuple[int, int, int]:
        return (*self.canvas(name), self.models[name].settings.channels)

    def _images(self, name: str, requests: Sequence[Json]) -> list[np.ndarray]:
        return [unpack(request.get("image"), self._shape(name)) for request in requests]

    def _filled_up(self, name: str, *images: np.ndarray) -> np.ndarray:
        return np.stack([*images, *[np.zeros(self._shape(name), np.float32)] * SIZE][:SIZE])

    def warm(self, name: str) -> None:
        """Compiles all that the page needs of a model.

        Args:
            name: name of a model.
        """
        self.about(name)
        request = {"model": name, "count": 1, "seed": 0, "scene": {"objects": []}}
        (dreamt,) = self.dream([request])
        self.infer([{**request, **dreamt}])
        self._draw_posterior(name, unpack(dreamt["image"], self._shape(name)), 0)
        self.other([request])
        self.render([request])

    def about(self, name: str) -> Json:
        """Describes a model to the page. The first call takes a while; the result is cached.

        Args:
            name: name of a model.

        Returns:
            Its name, settings and canvas; whether it has `fresh` scenes; the `mean` of its
            appearances, their principal `directions`, and the `spread` along each.
        """
        if name not in self._about:
            self._about[name] = self._describe(name)
        return self._about[name]

    def _describe(self, name):
        model = self.model(name)
        settings = model.settings
        mean, spread, directions = self._directions(name)
        return {
            "name": name,
            "channels": settings.channels,
            "sprite_size": settings.sprite_size,
            "latent_size": settings.latent_size,
            "max_objects": settings.max_objects,
            "slots": self._slots(model),
            "prior": settings.prior.kind,
            "composition": settings.composition,
            "canvas": list(self.canvas(name)),
            "fresh": self._draw(name, 1, 0) is not None,
            "mean": mean.tolist(),
            "spread": spread.tolist(),
            "directions": directions.tolist(),
        }

    def _directions(self, name):
        """The mean of encodings, and their principal components with standard deviations."""
        model = self.models[name]
        many = self._many_scenes(name)
        seen = model.preprocess(many)
        parts = [model.decompose(seen[i : i + SIZE])[1] for i in range(0, ENCODED, SIZE)]
        encodings = np.concatenate([z for part in parts for z in part])
        if len(encodings) < 2:
            encodings = np.eye(model.settings.latent_size, dtype=np.float32)
        mean = encodings.mean(0)
        _, values, directions = np.linalg.svd(encodings - mean, full_matrices=False)
        spread = values / math.sqrt(len(encodings))
        return mean, spread[:DIRECTIONS], directions[:DIRECTIONS]

    def _many_scenes(self, name):
        drawn: list[Any] = [self._draw(name, 1 + k % 3, k) for k in range(ENCODED)]
        if drawn[0] is not None:
            return np.stack(drawn)
        model = self.models[name]
        dreamt = model.sample(0, ENCODED, [1, 2, 3], self.canvas(name))
        return likelihoods.of(model.settings).is_foreground(np.asarray(model.render(dreamt)))

    # --- scenes ------------------------------------------------------------------

    def preprocess(self, requests: Sequence[Json]) -> list[Json]:
        """Preprocesses files: {model, height, width, colours, invert} -> {image}.

        Args:
            requests: `colours` are bytes, three per pixel. `invert` is for objects that are dark on
                a bright background.

        Returns:
            Images as the model sees them, in the middle of the canvas.
        """
        answers = []
        for request in requests:
            name: Any = request.get("model")
            self.model(name)
            shape = self._shape(name)
            height, width = (_whole(request.get(k), k, 1, n) for k, n in _sides(shape))
            raw = _bytes(request.get("colours"), 3 * height * width).reshape(height, width, 3)
            preprocessing = self._preprocessing[name]
            if request.get("invert") is True:
                preprocessing = dataclasses.replace(preprocessing, invert=True)
            image = np.zeros(shape, np.float32)
            top, left = (shape[0] - height) // 2, (shape[1] - width) // 2
            image[top : top + height, left : left + width] = preprocessing(raw)
            answers.append({"image": pack(image)})
        return answers

    def fresh(self, requests: Sequence[Json]) -> list[Json]:
        """Draws new scenes of a model's data set: {model, count, seed} -> {image}.

        Args:
            requests: `count` is the number of objects.

        Returns:
            Their images.
        """
        answers = []
        for request in requests:
            name: Any = request.get("model")
            self.model(name)
            count = _whole(request.get("count"), "count", 0, 9)
            try:
                image = self._draw(name, count, _seed(request))
            except ValueError:
                raise Refused(f"There is no room for {count} objects.") from None
            if image is None:
                raise Refused("This model has no data set to draw scenes from; sample the prior.")
            answers.append({"image": pack(image > 0)})
        return answers

    def dream(self, requests: Sequence[Json]) -> list[Json]:
        """Samples scenes from the prior: {model, count, seed} -> {image}.

        Args:
            requests: `count` is the number of objects.

        Returns:
            Their images.
        """
        answers = []
        for request in requests:
            name: Any = request.get("model")
            model = self.model(name)
            count = _whole(request.get("count"), "count", 0, model.settings.max_objects)
            scene = model.sample(_seed(request), 1, [count], self.canvas(name))
            means = np.asarray(model.render(scene))[0]
            answers.append({"image": pack(likelihoods.of(model.settings).is_foreground(means))})
        return answers

    def infer(self, requests: Sequence[Json]) -> list[Json]:
        """Decomposes images: {model, image} -> {objects, heat, log_p, terms}.

        Args:
            requests: all for one model.

        Returns:
            Objects with `location`, `score`, `appearance` and `sprite`; `heat`, the probability of
            an object at each pixel; and the bound `log_p` with the `terms` of the ELBO.
        """
        name: Any = requests[0].get("model")
        model = self.model(name)
        images = self._images(name, requests)
        batch = self._filled_up(name, *images)
        seen, slots = model.preprocess(batch), self._slots(model)
        kept, appearances = model.decompose(seen, slots, keep_maps=True)
        drawn = model.decode(np.concatenate(appearances))
        sprites = decomposition.split(drawn, [len(z) for z in appearances])
        # So that neither an image's bound nor what is compiled depends on concurrent requests.
        most = model.settings.max_objects
        bound = model.bound(batch, SAMPLES, indices=[0] * SIZE, max_objects=most)
        terms = {k: np.asarray(v) for k, v in bound.terms._asdict().items()}
        return [
            {
                "objects": [
                    {
                        "location": kept[b].location[k].tolist(),
                        "score": round(float(kept[b].score[k]), 4),
                        **self._appearance(appearances[b][k], sprites[b][k]),
                    }
                    for k in range(len(kept[b].location))
                ],
                "heat": as_bytes(scipy.special.expit(kept[b].log_odds_map)),
                "log_p": round(float(bound.log_p[b]), 2),
                "terms": {k: round(float(v[b]), 2) for k, v in terms.items()},
            }
            for b in range(len(images))
        ]

    def render(self, requests: Sequence[Json]) -> list[Json]:
        """Renders scenes: {model, scene: {objects: [{location, appearance}]}} -> {pixels}.

        Args:
            requests: all for one model.

        Returns:
            Pixel means.
        """
        name: Any = requests[0].get("model")
        model = self.model(name)
        latents, slots = model.settings.latent_size, self._slots(model)
        made = self._scene(name)
        for b, request in enumerate(requests):
            scene = request.get("scene")
            objects = scene.get("objects") if isinstance(scene, dict) else None
            if not isinstance(objects, list) or len(objects) > slots:
                raise Refused(f"A scene is a list of up to {slots} objects.")
            made.count[b] = len(objects)
            for k, thing in enumerate(objects):
                if not isinstance(thing, dict):
                    raise Refused("An object has a location and an appearance.")
                made.location[b, k] = _vector(thing.get("location"), "A location", 2)
                made.appearance[b, k] = _vector(thing.get("appearance"), "An appearance", latents)
        means = np.asarray(model.render(made))
        return [{"pixels": as_bytes(image)} for image in means[: len(requests)]]

    # --- appearances -------------------------------------------------------------

    def decode(self, requests: Sequence[Json]) -> list[Json]:
        """Decodes appearances: {model, appearance} -> {appearance, sprite}.

        Args:
            requests: all for one model.

        Returns:
            The appearances with their sprites.
        """
        name: Any = requests[0].get("model")
        latents = self.model(name).settings.latent_size
        vectors = [_vector(r.get("appearance"), "An appearance", latents) for r in requests]
        return self._decoded(name, vectors)

    def other(self, requests: Sequence[Json]) -> list[Json]:
        """Samples appearances from the prior: {model, seed} -> {appearance, sprite}.

        Args:
            requests: all for one model.

        Returns:
            The appearances with their sprites.
        """
        name: Any = requests[0].get("model")
        model = self.model(name)
        vectors = []
        for request in requests:
            random = np.random.default_rng(_seed(request))
            noise = random.standard_normal((1, model.settings.latent_size))
            vectors.append(np.asarray(model.sample_appearances(noise, random.random(1)))[0])
        return self._decoded(name, vectors)

    def like(self, requests: Sequence[Json]) -> list[Json]:
        """Samples from the posterior of an object's appearance.

        {model, image, location, seed} -> {appearance, sprite}

        Args:
            requests: all for one model; the object is the one nearest to the location.

        Returns:
            The appearances with their sprites.
        """
        name: Any = requests[0].get("model")
        model = self.model(name)
        vectors = []
        for request, image in zip(requests, self._images(name, requests), strict=True):
            location = _vector(request.get("location"), "A location", 2)
            scene = self._draw_posterior(name, image, _seed(request))
            found = np.asarray(scene.location[0])[: int(scene.count[0])]
            distances = np.abs(found - location).max(1)
            if not (distances <= model.settings.sprite_size / 2).any():
                raise Refused("The model finds no object there any more.")
            vectors.append(np.asarray(scene.appearance[0, distances.argmin()]))
        return self._decoded(name, vectors)

    def _draw_posterior(self, name: str, image: np.ndarray, seed: int) -> Scene:
        return self.models[name].infer(self._filled_up(name, image), key=seed)

    def _scene(self, name: str) -> Scene:
        """An empty scene with the shapes of inferred ones, so that nothing else is compiled."""
        model = self.models[name]
        slots = self._slots(model)
        on_host: Any = (
            np.zeros(SIZE, np.int32),
            np.full((SIZE, slots, 2), -1, np.int32),
            np.zeros((SIZE, slots, model.settings.latent_size), np.float32),
            self.canvas(name),
            model.fingerprint,
            np.zeros((SIZE, slots), np.float32),
        )
        return Scene(*on_host)

    def _decoded(self, name: str, vectors) -> list[Json]:
        scene = self._scene(name)
        scene.count[: len(vectors)] = 1
        scene.location[: len(vectors), 0] = 0
        scene.appearance[: len(vectors), 0] = vectors
        sprites = np.asarray(self.models[name].sprites(scene))[:, 0]
        return [self._appearance(z, s) for z, s in zip(vectors, sprites, strict=False)]

    def _appearance(self, vector, sprite) -> Json:
        numbers = [round(float(value), 4) for value in np.asarray(vector)]
        return {"appearance": numbers, "sprite": as_bytes(np.asarray(sprite))}
