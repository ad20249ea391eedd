"""Takes out of a run what is needed to use its model, small enough to be shipped.

    lavae export --run=runs/mnist1k-cpu --output=lavae_jax/weights/mnist1k
    lavae evaluate --checkpoint=mnist1k --output=lavae_jax/weights/mnist1k/results.json
    lavae export --card=lavae_jax/weights/mnist1k

Writes the newest checkpoint without the optimiser and the auxiliary VAE, in half
precision; the config without folders of this machine; the training's metrics; and
`provenance.json`: the command that makes the model again, the time that it took, the
revision of this repository and the packages' versions; and a model card. `lavae_jax.load` takes
the folder, or its name if it is in lavae_jax/weights. --card writes the model card of an exported
model anew, with the results that are in its folder by then.
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
CARD = flags.DEFINE_string("card", None, "An exported model's folder, to write its card anew.")


def _module(name: str) -> types.ModuleType:
    """The config of a run: of the package, or of the checkout that the program is run from."""
    package = "lavae_jax.recipes" if name in recipes.names() else "configs"
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"there is no config {name!r}, of which this run is") from error


def command(config: ConfigDict) -> str:
    """What trains the same model again, up to folders and to when things are reported."""
    usual = _module(config.name).get_config(config.recipe)
    usual, ours = (files.flatten(files.plain(c)) for c in (usual, config))
    free = {*files.MAY_CHANGE, files.IMAGES} - {"num_train_steps"}
    changes = [
        " " + shlex.quote(f"--config.{name}={value}")
        for name, value in ours.items()
        if name not in free and usual.get(name) != value
    ]
    recipe = f"configs/{config.name}.py:{config.recipe}"
    return f"python launch/train.py --config={recipe}{''.join(changes)}"


def main():
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
    print(f"{output}: {size / 1e6:.1f} MB; made by\n  {again}")


def run():
    program.run(main)
