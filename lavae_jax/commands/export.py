"""Exports the model of a run, without what is only needed for training.

    lavae export --run=runs/mnist1k-cpu --output=lavae_jax/weights/mnist1k
    lavae evaluate --checkpoint=mnist1k --output=lavae_jax/weights/mnist1k/results.json
    lavae export --card=lavae_jax/weights/mnist1k

Writes the newest checkpoint in half precision, without the optimiser and the auxiliary VAE; the
config without local folders; the metrics of training; `provenance.json` with the command that
reproduces the model, its training time, the revision of this repository and the packages' versions;
and a model card. `lavae_jax.load` takes the folder, or its name if it is in lavae_jax/weights.
--card rewrites the model card of an exported model with the results that are in its folder now.
"""

import importlib
import pathlib
import shlex
import types

from absl import app, flags
from ml_collections import ConfigDict

from lavae_jax import model_card, model_files, recipes
from lavae_jax.commands import program
from lavae_jax.errors import UserError
from lavae_jax.training import files

RUN = flags.DEFINE_string("run", None, "The run's folder.")
OUTPUT = flags.DEFINE_string("output", None, "The folder to write; it must not exist.")
CARD = flags.DEFINE_string("card", None, "The folder of an exported model, to rewrite its card.")

PATH = "dataset.path"  # of custom images


def _module(name: str) -> types.ModuleType:
    """Imports the module of a config, from the package or from the checkout in use."""
    package = "lavae_jax.recipes" if name in recipes.names() else "configs"
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the config of this run, {name!r}, does not come with the package, and this checkout "
            f"has no file configs/{name}.py"
        ) from error


def command(config: ConfigDict) -> str:
    """Makes the command that trains the same model, apart from folders and reporting intervals.

    Args:
        config: the config of a run.

    Returns:
        The command.

    Raises:
        UserError: there is no config of this name.
    """
    usual = _module(config.name).get_config(config.recipe)
    usual, ours = (files.flatten(files.plain(c)) for c in (usual, config))
    path = ours.get(PATH)
    if path and not path.startswith("tfds:"):
        ours[PATH] = "IMAGES"  # in place of a local folder or file, whose name is private
    free = {*files.MAY_CHANGE, files.IMAGES} - {"num_train_steps"}
    changes = [
        " " + shlex.quote(f"--config.{name}={value}")
        for name, value in ours.items()
        if name not in free and usual.get(name) != value
    ]
    recipe = f"configs/{config.name}.py:{config.recipe}"
    return f"python launch/train.py --config={recipe}{''.join(changes)}"


def main():
    """Exports a model, or rewrites a model card."""
    if CARD.value and not RUN.value and not OUTPUT.value:
        model_card.write(pathlib.Path(CARD.value))
        print(f"written to {pathlib.Path(CARD.value) / model_card.CARD}")
        return
    if CARD.value or not RUN.value or not OUTPUT.value:
        raise app.UsageError("give --run and --output, or --card alone")
    run, output = pathlib.Path(RUN.value), pathlib.Path(OUTPUT.value)
    again = command(model_files.read_config(run))
    size = model_files.export(run, output, again)
    model_card.write(output)
    print(f"{output}: {size / 1e6:.1f} MB; to reproduce:\n  {again}")


def run():
    """Runs the program."""
    program.run(main)
