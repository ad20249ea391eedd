"""Trained models, to be used: `load` one, then infer, render, edit and sample."""

import functools
import json
import math
import pathlib
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from ml_collections import ConfigDict

from lavae_jax import (
    bernoulli,
    checkpoints,
    generative,
    inference,
    objective,
    packing,
    tasks,
    vae,
)
from lavae_jax.locations import Locations
from lavae_jax.model import ModelConfig, Variables
from lavae_jax.scene import Scene

SHIPPED = pathlib.Path(__file__).with_name("weights")


def load(path: str | pathlib.Path) -> "Model | Baseline":
    """A trained model: a run's folder, one of its checkpoints, or shipped weights' name."""
    given = path
    path = pathlib.Path(path)
    if not path.exists() and (SHIPPED / str(given)).is_dir():
        path = SHIPPED / str(given)
    if not path.is_dir():
        names = ", ".join(sorted(p.name for p in SHIPPED.glob("*/"))) or "none yet"
        raise FileNotFoundError(f"{given} is neither a folder nor shipped weights ({names})")
    path = path.resolve()
    is_checkpoint = (path / "meta.json").exists()
    workdir = path.parent.parent if is_checkpoint else path
    if not (workdir / "config.json").exists():
        raise FileNotFoundError(f"{workdir} has no config.json: it is not the folder of a run")
    config = ConfigDict(json.loads((workdir / "config.json").read_text()))
    folder = workdir / "checkpoints"
    checkpoint = checkpoints.load(path) if is_checkpoint else checkpoints.load_newest(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no whole checkpoint")
    model = from_arrays(config, checkpoint.arrays)
    model.folder = workdir
    return model


def from_arrays(config: ConfigDict, arrays: dict[str, np.ndarray]) -> "Model | Baseline":
    """A model out of a run's config and the arrays of a checkpoint, of whatever precision."""
    shapes = jax.eval_shape(lambda: tasks.make(config).init(jax.random.key(0)))
    trees = []
    for prefix, tree in zip(_prefixes(config), shapes, strict=True):
        ours = {
            name.removeprefix(prefix): array.astype(np.float32)
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        trees.append(checkpoints.unflatten(ours, tree.get("lavae", tree)))
    variables = Variables(*trees)
    if config.kind == "lavae":
        return Model(tasks.model_config(config.model), variables, config)
    return Baseline(vae.BaselineConfig(**config.model), variables, config)


def is_part_of_model(config: ConfigDict, name: str) -> bool:
    """Whether an array of a checkpoint is needed to use the model."""
    return name.startswith(_prefixes(config))


def _prefixes(config: ConfigDict) -> tuple[str, str]:
    """How the names of parameters and of batch statistics begin in a checkpoint."""
    part = "lavae." if config.kind == "lavae" else ""
    return f"state.params.{part}", f"state.batch_stats.{part}"


# --- inputs ------------------------------------------------------------------


def as_images(images, channels: int) -> np.ndarray:
    """Images as float32 [B, H, W, C] in 0..1, or an error that says what is wrong."""
    images = np.asarray(images)
    wanted = f"[B, H, W, {channels}]" + (" or [B, H, W]" if channels == 1 else "")
    if images.ndim == 3 and channels == 1:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] != channels or 0 in images.shape[1:]:
        raise ValueError(f"images have shape {images.shape}; this model wants {wanted}")
    if images.dtype == np.uint8:
        return images.astype(np.float32) / 255
    if images.dtype != bool and not np.issubdtype(images.dtype, np.floating):
        raise TypeError(
            f"images have type {images.dtype}; wanted are uint8 (0 to 255), float (0 to 1) or bool"
        )
    images = images.astype(np.float32)
    if not np.isfinite(images).all() or images.min(initial=0) < 0 or images.max(initial=0) > 1:
        low, high = images.min(), images.max()
        raise ValueError(f"images of type float reach from {low:g} to {high:g}, not from 0 to 1")
    return images


@functools.lru_cache(maxsize=64)
def _on_devices(function, config, num_arrays: int, sizes: tuple):
    """function(config, variables, *arrays, **sizes) on every local device, compiled."""

    def run(variables, *arrays):
        return function(config, variables, *arrays, **dict(sizes))

    return jax.pmap(run, in_axes=(None, *[0] * num_arrays))


def _in_chunks(function, config, variables, size: int, *arrays: np.ndarray, progress="", **sizes):
    """Applies a function of batches to arrays of any length, on all local devices.

    Every device gets `size` images at a time, or a smaller power of two if there are
    fewer; the last batch is filled up. So little is compiled and memory is bounded.
    Returns a tree of arrays on the host.
    """
    length, devices = len(arrays[0]), jax.local_device_count()
    size = min(size, 1 << max(0, math.ceil(math.log2(max(length / devices, 1)))))
    run = _on_devices(function, config, len(arrays), tuple(sorted(sizes.items())))
    results = []
    starts = range(0, max(length, 1), size * devices)
    for start in tqdm.tqdm(starts, desc=progress, disable=not progress, mininterval=1.0):
        index = np.minimum(np.arange(start, start + size * devices), max(length - 1, 0))
        batch = [
            a[index] if length else np.zeros((len(index), *a.shape[1:]), a.dtype) for a in arrays
        ]
        out = run(variables, *(a.reshape(devices, size, *a.shape[1:]) for a in batch))
        kept = min(len(index), length - start)
        results.append(
            jax.tree.map(lambda a, n=kept: np.asarray(a).reshape(-1, *a.shape[2:])[:n], out)
        )
    return jax.tree.map(lambda *a: np.concatenate(a), *results)


def _keys(key: chex.PRNGKey | int, n: int) -> np.ndarray:
    """A key of its own for each image, whatever batches they come in."""
    key = jax.random.key(key) if isinstance(key, int) else key
    index = jnp.arange(n)
    return np.asarray(jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, i))(index)))


# --- models ------------------------------------------------------------------


class _Trained:
    """What both kinds of model share. Methods take and return arrays of any length."""

    def __init__(self, config, variables: Variables, run: ConfigDict, batch_size: int = 64):
        self.config, self.variables, self.run = config, variables, run
        self.batch_size = batch_size
        self.folder: pathlib.Path | None = None  # of the run that it was loaded from

    def log_likelihood(self, images, num_samples: int = 100, key: chex.PRNGKey | int = 0):
        """The importance-weighted bound on log p(x) of binary images, [B]."""
        return self.bound(images, num_samples, key)["log_likelihood"]

    def bound(
        self, images, num_samples: int = 100, key: chex.PRNGKey | int = 0, progress: str = ""
    ) -> dict:
        """`log_likelihood`, and the means over samples of its `terms`.

        `progress` is the title of a progress bar; without one there is none.
        """
        x = as_images(images, self.config.channels)
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                "a likelihood needs binary images: 0 and 255 as uint8, 0 and 1 as float"
            )
        # About ten times as many samples at once as images otherwise.
        size = max(1, 10 * self.batch_size // num_samples)
        function, sizes = self._bound(x)
        sizes |= {"num_samples": num_samples, "progress": progress}
        return self._run(function, size, x, _keys(key, len(x)), **sizes)

    def _run(self, function, size, *arrays, **sizes):
        return _in_chunks(function, self.config, self.variables, size, *arrays, **sizes)


class Model(_Trained):
    """A trained LAVAE."""

    config: ModelConfig

    def infer(self, images, key: chex.PRNGKey | int | None = None) -> Scene:
        """Takes images apart into objects.

        Locations are the peaks of h_loc that f_count counts, highest first, appearances
        the means of q(z_app | z_loc, x). With a key, both are a sample of q instead.
        """
        x = as_images(images, self.config.channels)
        if key is None:
            scene = self._run(_most_probable, self.batch_size, x)
        else:
            scene = self._run(_sampled, self.batch_size, x, _keys(key, len(x)))
        return jax.tree.map(jnp.asarray, scene)

    def render(self, scene: Scene) -> jax.Array:
        """Pixel means [B, H, W, C]: the probability that a pixel is lit."""
        return jnp.asarray(self._decode(scene)[1])

    def sprites(self, scene: Scene) -> jax.Array:
        """What each object looks like, [B, M, h, w, C]; 0 where absent."""
        return jnp.asarray(self._decode(scene)[0])

    def sample(
        self,
        key: chex.PRNGKey | int,
        num_scenes: int,
        count: Sequence[int] | None = None,
        canvas: tuple[int, int] = (64, 64),
    ) -> Scene:
        """Scenes from the prior. `count` replaces p(n) by the uniform over these values."""
        key = jax.random.key(key) if isinstance(key, int) else key
        logits = None
        if count is not None:
            values, most = np.unique(count), self.config.max_objects
            if not len(values) or values.min() < 0 or values.max() > most:
                raise ValueError(f"count={count}: wanted are numbers from 0 to {most}")
            logits = jnp.full(most + 1, -jnp.inf).at[values].set(0.0)
        drawn = generative.sample_prior(
            self.config, self.variables, key, num_scenes, canvas, logits
        )
        return _scene(drawn.count, drawn.index, drawn.z_app, canvas)

    def _bound(self, x):
        slots = _round_up(int(np.max(self.infer(x).count, initial=0)), self.config.max_objects)
        return _lavae_bound, {"slots": slots}

    def _decode(self, scene: Scene):
        latent = scene.appearance.shape[-1]
        if latent != self.config.latent_size:
            wanted = self.config.latent_size
            raise ValueError(f"appearances have {latent} numbers; this model's have {wanted}")
        parts = [np.asarray(a) for a in (scene.count, scene.location, scene.appearance)]
        return self._run(_decoded, self.batch_size, *parts, canvas=scene.canvas)


class Baseline(_Trained):
    """A trained β-VAE."""

    config: vae.BaselineConfig

    def reconstruct(self, images) -> jax.Array:
        """Pixel means [B, H, W, C]."""
        x = as_images(images, self.config.channels)
        return jnp.asarray(self._run(vae.reconstruct, self.batch_size, x))

    def sample(
        self, key: chex.PRNGKey | int, num_images: int, canvas: tuple[int, int] = (64, 64)
    ) -> jax.Array:
        """Pixel means [B, H, W, C] of images from the prior."""
        key = jax.random.key(key) if isinstance(key, int) else key
        return vae.sample_prior(self.config, self.variables, key, num_images, canvas)

    def _bound(self, x):
        return _baseline_bound, {}


# --- what happens to a batch, for `_on_devices` -------------------------------


def _most_probable(config, variables, x):
    h_loc, _ = inference.location_logits(config, variables, x, train=False)
    index, count = inference.peak_locations(config, h_loc)
    where = Locations(index, None, jnp.zeros(index.shape))
    objects = packing.pack(count, config.max_objects * len(x))
    q_app, _ = inference.appearance(config, variables, x, where, objects, train=False)
    return _scene(count, index, objects.scatter(q_app.mean, *index.shape), x.shape[1:3])


def _sampled(config, variables, x, keys):
    keys = jax.random.wrap_key_data(keys)
    h_loc, _ = inference.location_logits(config, variables, x, train=False)
    count = inference.infer_count(config, h_loc)
    budget = objective.Budget.for_everything(config, len(x))
    logits = inference.sampling_logits(config, h_loc)
    drawn, _ = objective.sample_posterior(config, variables, x, logits, count, keys, budget)
    index = drawn.where.index
    return _scene(count, index, drawn.objects.scatter(drawn.z_app, *index.shape), x.shape[1:3])


def _decoded(config, variables, count, location, appearance, canvas):
    size, slots = location.shape[:2]
    row, column = jnp.clip(location, 0, jnp.array(canvas) - 1).transpose(2, 0, 1)
    where = Locations(row * canvas[1] + column, None, jnp.zeros((size, slots)))
    objects = packing.pack(count, size * slots)
    z_app = objects.gather(appearance)
    sprites, _ = generative.decode(config, variables, z_app, objects, train=False)
    intensity = generative.intensity(sprites, where, objects, size, canvas)
    return objects.scatter(sprites, size, slots), bernoulli.pixel_means(intensity)


def _lavae_bound(config, variables, x, keys, num_samples, slots):
    keys = jax.random.wrap_key_data(keys)
    h_loc, _ = inference.location_logits(config, variables, x, train=False)
    log_w, parts = objective.log_weights(config, variables, x, h_loc, keys, num_samples, slots)
    return _over_samples(log_w, parts._asdict())


def _baseline_bound(config, variables, x, keys, num_samples):
    keys = jax.random.wrap_key_data(keys)
    return _over_samples(*vae.log_weights(config, variables, x, keys, num_samples))


def _over_samples(log_w, parts):
    means = {name: value.mean(0) for name, value in parts.items()}
    return {"log_likelihood": objective.log_mean_exp(log_w), "terms": means}


# --- parts -------------------------------------------------------------------


def _scene(count, index, z_app, canvas) -> Scene:
    present = (jnp.arange(index.shape[1]) < count[:, None])[..., None]
    location = jnp.stack([index // canvas[1], index % canvas[1]], axis=-1)
    return Scene(
        count.astype(jnp.int32),
        jnp.where(present, location, -1).astype(jnp.int32),
        jnp.where(present, z_app, 0),
        tuple(canvas),
    )


def _round_up(count: int, most: int) -> int:
    """1, 3, 7 or M: few different numbers of slots, so that little is compiled."""
    return next((n for n in (1, 3, 7) if count <= n <= most), most)
