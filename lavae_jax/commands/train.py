"""Trains a model, on whatever devices there are.

    python launch/train.py --config=configs/mnist1k.py          # the default recipe
    python launch/train.py --config=configs/mnist1k.py:paper    # the paper's own networks
    lavae train --config=images --config.dataset.path=my_images/ --config.model.sprite_size=17

A config is a file, or the name of one that comes with the package. A recipe follows it after a
colon; without one, the config's default is used, which may depend on the devices of the machine.
The same command resumes a run that was interrupted. Any field of the config can be set by
--config.FIELD=VALUE.

On several machines, start the program on each of them: under Slurm's srun they find each other
(launch/slurm.sbatch is a job), on a TPU pod with --distributed (launch/tpu_pod.sh does it);
elsewhere give --coordinator, --num_processes and --process_id.
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
    """The recipe that was chosen for a command that names none, and how to choose another."""
    name = recipe_name(path)
    return (
        f"recipe {config.recipe}, the default of {name} on {jax.devices()[0].platform} devices; "
        f"--config={name}:RECIPE chooses another"
    )


def recipe_name(path: str) -> str:
    """A config as a user would type it."""
    name = pathlib.Path(path).stem
    return name if path == recipes.path(name) else path


def main():
    config = CONFIG.value
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    if ":" not in os.path.basename(path) and jax.process_index() == 0:
        print(default_recipe_notice(config, path), flush=True)
    run_data.settle(config)
    workdir = WORKDIR.value or os.path.join("runs", f"{config.name}-{config.recipe}")
    command = shlex.join([*program.name(), *sys.argv[1:]])
    return loop.train(config, workdir, lambda: run_data.open_training_data(config), command)


def run():
    program.run(main, connect=process_flags.connect)
