"""Trained models on disk: a run's folder, one of its checkpoints, or an exported model.

An exported model is a folder with `model.safetensors` (parameters and batch statistics in half
precision), the run's `config.json` without local folders, its `metrics.jsonl`, and
`provenance.json`: the command that reproduces it, its training time, versions, and the checksum of
the weights. The package ships some models in `lavae_jax/weights`.
"""

import hashlib
import json
import pathlib
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import safetensors
import safetensors.numpy
from ml_collections import ConfigDict

from lavae_jax import checkpoints, compatibility
from lavae_jax.api import Baseline, Model
from lavae_jax.checkpoints import Checkpoint, CheckpointError
from lavae_jax.model import LAVAE, initialise
from lavae_jax.settings import LavaeSettings, from_config
from lavae_jax.vae import baseline_settings

SHIPPED = pathlib.Path(__file__).with_name("weights")
WEIGHTS, CONFIG, PROVENANCE, METRICS = (
    "model.safetensors",
    "config.json",
    "provenance.json",
    "metrics.jsonl",
)
_FROM_ENVIRONMENT = ("git_revision", "python", "packages", "devices")


def names() -> list[str]:
    """Lists the models that the package ships.

    Returns:
        Their names, sorted.
    """
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{WEIGHTS}"))


class Trained(NamedTuple):
    """A trained model on disk.

    Attributes:
        folder: where it is.
        config: the config of the training run.
        arrays: parameters and batch statistics, called params.… and batch_stats.…
        step: the training steps so far.
        seconds: the training time so far.
    """

    folder: pathlib.Path
    config: ConfigDict
    arrays: dict[str, np.ndarray]
    step: int
    seconds: float


def load(path: str | pathlib.Path) -> Model | Any:
    """Loads a trained model.

    Args:
        path: a run's folder, one of its checkpoints, an exported model's folder, or the name of a
            model that the package ships.

    Returns:
        A `Model`, or the `Baseline`, whichever the run trained.

    Raises:
        FileNotFoundError: there is no model.
        CheckpointError: its files are damaged, or do not fit the config.
    """
    # Any stands for Baseline, which every caller would otherwise have to rule out.
    trained = read(path)
    model = build(trained.config, trained.arrays)
    model.folder = trained.folder
    return model


def read(path: str | pathlib.Path) -> Trained:
    """Reads the files of a trained model.

    Args:
        path: see `load`.

    Returns:
        What `build` needs, and how long the model was trained.

    Raises:
        FileNotFoundError: there is no model.
        CheckpointError: its files are damaged.
    """
    folder = find(path)
    is_checkpoint = (folder / "meta.json").exists()
    workdir = folder.parent.parent if is_checkpoint else folder
    config = read_config(workdir)
    if (workdir / WEIGHTS).exists():
        made = _read_json(workdir / PROVENANCE)
        step = made.get("step", config.get("num_train_steps", 0))
        return Trained(workdir, config, _read_weights(workdir), step, made.get("seconds", 0.0))
    checkpoint = checkpoints.load(folder) if is_checkpoint else _newest(workdir)
    seconds = checkpoint.meta.get("seconds", 0.0)
    return Trained(workdir, config, _of_model(config, checkpoint), checkpoint.step, seconds)


def build(config: ConfigDict, arrays: dict[str, np.ndarray]) -> Model | Baseline:
    """Makes a model from a config and arrays.

    Args:
        config: the config of a run. Only the settings of the model and of its preprocessing matter.
        arrays: parameters and batch statistics, called params.… and batch_stats.…

    Returns:
        The model, with its weights as float32.

    Raises:
        CheckpointError: the arrays do not fit the config, or are not finite.
    """
    module = make_module(config)
    like = jax.eval_shape(lambda: initialise(module, jax.random.key(0)))
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    variables = checkpoints.unflatten(arrays, like)
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise CheckpointError(f"the weights are not finite: {', '.join(broken[:5])}")
    return (Model if config.kind == "lavae" else Baseline)(module, variables, config)


def make_module(config: ConfigDict) -> nn.Module:
    """Makes the Flax module that a config describes.

    Args:
        config: the config of a run.

    Returns:
        A LAVAE or a baseline, without weights.

    Raises:
        CheckpointError: the config describes no model.
    """
    try:
        if config.kind == "lavae":
            return LAVAE(from_config(LavaeSettings, config.model))
        return baseline_settings(config.model).build()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the config describes no valid model: {error}") from error


def export(workdir: pathlib.Path, output: pathlib.Path, command: str) -> int:
    """Exports the newest checkpoint of a run, without the optimiser and the auxiliary VAE.

    Args:
        workdir: the run's folder.
        output: the folder to write.
        command: the command that reproduces the model.

    Returns:
        The size of the folder in bytes.

    Raises:
        FileExistsError: the folder to write exists.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists; name a new folder, or delete it")
    config, metrics = read_config(workdir), (workdir / METRICS).read_bytes()
    environment = json.loads((workdir / "environment.json").read_text())
    checkpoint = _newest(workdir)
    arrays = {name: _halved(name, a) for name, a in _of_model(config, checkpoint).items()}
    folders = ("data_dir", "mnist_dir", "path")
    config.dataset.update({name: "" for name in folders if name in config.dataset})
    weights = safetensors.numpy.save(arrays)
    provenance = {
        "command": command,
        "seconds": checkpoint.meta["seconds"],
        "step": checkpoint.step,
        **{name: environment[name] for name in _FROM_ENVIRONMENT},
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    output.mkdir(parents=True)
    (output / WEIGHTS).write_bytes(weights)
    for name, content in ((CONFIG, config.to_dict()), (PROVENANCE, provenance)):
        (output / name).write_text(json.dumps(content, indent=1) + "\n")
    (output / METRICS).write_bytes(metrics)
    return sum(p.stat().st_size for p in output.iterdir())


def read_config(workdir: pathlib.Path) -> ConfigDict:
    """Reads the config of a run, in the form of this version.

    Args:
        workdir: the folder of the run, or of an exported model.

    Returns:
        The config.

    Raises:
        FileNotFoundError: there is no config.
        CheckpointError: it describes no model.
    """
    path = workdir / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{workdir} has no {CONFIG}: it is not the folder of a run")
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or not {"model", "kind"} <= content.keys():
            raise ValueError("it describes no model")
    except ValueError as error:
        raise CheckpointError(f"{path} is not the config of a run: {error}") from error
    return ConfigDict(compatibility.upgrade_config(content))


# --- parts -------------------------------------------------------------------


def find(path: str | pathlib.Path) -> pathlib.Path:
    """Finds the folder of a model.

    A local folder hides shipped weights of the same name only if it contains a model.

    Args:
        path: see `load`.

    Returns:
        The absolute path of a folder.

    Raises:
        FileNotFoundError: there is neither such a folder nor such weights.
    """
    folder, shipped = pathlib.Path(path), SHIPPED / str(path)
    is_model = any((folder / name).exists() for name in (CONFIG, "meta.json"))
    if folder.is_dir() and (is_model or str(path) not in names()):
        return folder.resolve()
    if str(path) in names():
        return shipped.resolve()
    raise FileNotFoundError(
        f"{path} is neither a folder nor shipped weights ({', '.join(names()) or 'none yet'})"
    )


def _newest(workdir: pathlib.Path) -> Checkpoint:
    folder = workdir / "checkpoints"
    try:
        checkpoint = checkpoints.load_newest(folder)
    except CheckpointError as error:
        raise FileNotFoundError(str(error)) from error
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} contains no checkpoints; train the model first")
    return checkpoint


def _of_model(config: ConfigDict, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """A checkpoint's arrays without the optimiser's and the auxiliary VAE's."""
    return {
        name.replace(long, short, 1): array
        for name, array in checkpoint.arrays.items()
        for short, long in _prefixes(config).items()
        if name.startswith(long)
    }


def in_checkpoint(trained: Trained) -> dict[str, np.ndarray]:
    """Gives a model's arrays their names in the checkpoints of a run.

    Args:
        trained: the model.

    Returns:
        The arrays by their new names, as float32.
    """
    return {
        name.replace(short, long, 1): array.astype(np.float32)
        for name, array in trained.arrays.items()
        for short, long in _prefixes(trained.config).items()
        if name.startswith(short)
    }


def _prefixes(config: ConfigDict) -> dict[str, str]:
    """The prefixes of a model's arrays, and those of the same arrays in a checkpoint."""
    part = ".lavae." if config.kind == "lavae" else "."
    return {f"{name}.": f"state.{name}{part}" for name in ("params", "batch_stats")}


def _read_weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
    path = folder / WEIGHTS
    content = path.read_bytes()
    expected = _read_json(folder / PROVENANCE).get("sha256")
    if expected and hashlib.sha256(content).hexdigest() != expected:
        raise CheckpointError(f"{path} is damaged: it does not match its checksum")
    try:
        return compatibility.upgrade_arrays(safetensors.numpy.load(content))
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _halved(name: str, array: np.ndarray) -> np.ndarray:
    """Converts to half precision, which halves the size; three digits suffice for a weight."""
    half = array.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError(f"{name} is out of the range of half precision")
    return half
