"""Trains a model on all available devices.

    python launch/train.py --config=configs/mnist1k.py          # the default recipe
    python launch/train.py --config=configs/mnist1k.py:paper    # the paper's own networks
    lavae train --config=images --config.dataset.path=my_images/ --config.model.sprite_size=17

A config is a file, or the name of one that comes with the package. A recipe may follow it after a
colon; without one, the config chooses its default recipe, which may depend on the devices. The same
command resumes an interrupted run. --config.FIELD=VALUE sets any field of the config.

On several machines, start the program on each of them. Under Slurm's srun, the processes find each
other (see launch/slurm.sbatch). On a TPU pod, they do so with --distributed (see
launch/tpu_pod.sh). Elsewhere, give --coordinator, --num_processes and --process_id.
"""

import os
import pathlib
import shlex
import sys

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from lavae_jax import recipes
from lavae_jax.commands import process_flags, program, run_data
from lavae_jax.training import loop

CONFIG = config_flags.DEFINE_config_file("config", None, "A config, and a recipe after a colon.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder [runs/<config>-<recipe>].")
flags.mark_flag_as_required("config")
flags.adopt_module_key_flags(process_flags)


def default_recipe_notice(config: ConfigDict, path: str) -> str:
    """Describes the recipe that was chosen by default, and how to choose another.

    Args:
        config: the config of the run.
        path: its path.

    Returns:
        One line of text.
    """
    name = recipe_name(path)
    return (
        f"recipe {config.recipe}, the default of {name} on {jax.devices()[0].platform} devices; "
        f"--config={name}:RECIPE chooses another"
    )


def recipe_name(path: str) -> str:
    """Returns the name of a config as a user would type it.

    Args:
        path: the path of the config.

    Returns:
        The name alone for a config of the package; otherwise the path.
    """
    name = pathlib.Path(path).stem
    return name if path == recipes.path(name) else path


def main():
    """Trains the model that the flags name.

    Returns:
        The exit code.
    """
    config = CONFIG.value
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    if ":" not in os.path.basename(path) and jax.process_index() == 0:
        print(default_recipe_notice(config, path), flush=True)
    run_data.settle(config)
    workdir = WORKDIR.value or os.path.join("runs", f"{config.name}-{config.recipe}")
    command = shlex.join([*program.name(), *sys.argv[1:]])
    return loop.train(config, workdir, lambda: run_data.open_training_data(config), command)


def run():
    """Runs the program."""
    program.run(main, connect=process_flags.connect)
