"""Takes out of a run what is needed to use its model, small enough to be shipped.

    python launch/export.py --run=runs/mnist1k-cpu --output=lavae_jax/weights/mnist1k
    python launch/evaluate.py --checkpoint=mnist1k --output=lavae_jax/weights/mnist1k/results.json

Writes the newest checkpoint without the optimiser and the auxiliary VAE, in half
precision; the config without folders of this machine; the training's metrics; and
`provenance.json`: the command that makes the model again, the time that it took, the
revision of this repository and the packages' versions. `lavae_jax.load` takes the folder, or
its name if it is in lavae_jax/weights.
"""

import importlib
import json
import pathlib
import shutil

import _path  # noqa: F401
import numpy as np
from absl import app, flags, logging
from ml_collections import ConfigDict

from lavae_jax import api, checkpoints, run_files
from lavae_jax.checkpoints import Checkpoint

RUN = flags.DEFINE_string("run", None, "The run's folder.")
OUTPUT = flags.DEFINE_string("output", None, "The folder to write; it must not exist.")
flags.mark_flags_as_required(["run", "output"])

ENVIRONMENT = ("git_revision", "python", "packages", "devices")


def command(config: ConfigDict) -> str:
    """What trains the same model again, up to folders and to when things are reported."""
    usual = importlib.import_module(f"configs.{config.name}").get_config(config.recipe)
    usual, ours = (run_files.flatten(run_files.plain(c)) for c in (usual, config))
    free = set(run_files.FREE) - {"num_train_steps"}
    changes = [
        f" --config.{name}={value}"
        for name, value in ours.items()
        if name not in free and usual.get(name) != value
    ]
    recipe = f"configs/{config.name}.py:{config.recipe}"
    return f"python launch/train.py --config={recipe}{''.join(changes)}"


def _halved(name: str, array: np.ndarray) -> np.ndarray:
    """In half precision: half the size, and three digits are enough for a weight."""
    half = array.astype(np.float16)
    if not np.isfinite(half).all():
        raise SystemExit(f"error: {name} is out of the range of half precision")
    return half


def main(argv):
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    run, output = pathlib.Path(RUN.value), pathlib.Path(OUTPUT.value)
    if output.exists():
        raise SystemExit(f"error: --output={output} exists")
    try:
        config = ConfigDict(json.loads((run / "config.json").read_text()))
        environment = json.loads((run / "environment.json").read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    checkpoint = checkpoints.load_newest(run / "checkpoints")
    if checkpoint is None:
        raise SystemExit(f"error: {run} holds no whole checkpoint")

    config.dataset.update(data_dir="", mnist_dir="")
    provenance = {
        "command": command(config),
        "seconds": checkpoint.meta["seconds"],
        "step": checkpoint.step,
        **{name: environment[name] for name in ENVIRONMENT},
    }
    arrays = {
        name: _halved(name, array)
        for name, array in checkpoint.arrays.items()
        if api.is_part_of_model(config, name)
    }
    checkpoints.save(output / "checkpoints", Checkpoint(checkpoint.step, arrays, {}))
    for name, content in (("config", run_files.plain(config)), ("provenance", provenance)):
        (output / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    shutil.copy(run / "metrics.jsonl", output)
    size = sum(p.stat().st_size for p in output.rglob("*") if p.is_file())
    print(f"{output}: {size / 1e6:.1f} MB; made by\n  {provenance['command']}")


if __name__ == "__main__":
    app.run(main)
