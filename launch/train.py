"""Trains a model, on whatever devices there are.

    python launch/train.py --config=configs/mnist1k.py          # the default recipe
    python launch/train.py --config=configs/mnist1k.py:paper    # the paper's own networks
    python launch/train.py --config=configs/mnist1k.py:tiny --config.num_train_steps=100

A recipe follows the config's name after a colon; without one, the config's default is used, which
may depend on the devices of the machine. The same command resumes a run that was interrupted. Any field of the config can
be set by --config.FIELD=VALUE.

On several machines, start the program on each of them: under Slurm's srun they find each other
(launch/slurm.sbatch is a job), on a TPU pod with --distributed (launch/tpu_pod.sh does it);
elsewhere give --coordinator, --num_processes and --process_id.
"""

import os
import shlex
import sys

import _program
import jax
import process_flags
from absl import flags
from ml_collections import ConfigDict, config_flags

import datasets
from datasets import images
from lavae_jax import input_pipeline
from lavae_jax.training import loop
from lavae_jax.training.files import WorkdirError

CONFIG = config_flags.DEFINE_config_file("config", None, "A config, and a recipe after a colon.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder [runs/<config>-<recipe>].")
flags.mark_flag_as_required("config")
flags.adopt_module_key_flags(process_flags)


def open_data(config: ConfigDict) -> loop.Data:
    """The data set that a config names."""
    return _open_images(config) if config.dataset.name == "images" else _open_scenes(config)


def _open_images(config: ConfigDict) -> loop.Data:
    """Anyone's images. A threshold that they decide is known to the config when the run starts."""
    source = images.open_crops(config)
    for line in images.check(source, config.model.sprite_size, config.model.max_objects):
        print(line, flush=True)
    held_out = images.held_out(config.dataset.held_out, len(source))
    return loop.Data(
        input_pipeline.Part(source, range(len(source) - held_out)),
        input_pipeline.Part(source, range(len(source) - held_out, len(source))),
    )


def _open_scenes(config: ConfigDict) -> loop.Data:
    """A data set of scenes, which is built if it is not there."""
    builder = datasets.make_builder(**datasets.options(config.dataset))
    size, held_out = builder.builder_config.num_train, config.dataset.held_out
    if not 0 < held_out < size:
        raise loop.TrainingError(f"config.dataset.held_out={held_out} of {size} training scenes")
    if config.model.channels != builder.CHANNELS:
        raise loop.TrainingError(
            f"config.model.channels={config.model.channels}, but scenes of {config.dataset.name} "
            f"have {builder.CHANNELS}"
        )
    datasets.prepare(builder)
    first_held_out = size - held_out
    return loop.Data(
        input_pipeline.Part(input_pipeline.open_split(builder, "train"), range(first_held_out)),
        input_pipeline.Part(
            input_pipeline.open_split(builder, "train", ("image", "count")),
            range(first_held_out, size),
        ),
    )


def default_recipe_notice(config: ConfigDict, path: str) -> str:
    """The recipe that was chosen for a command that names none, and how to choose another."""
    return (
        f"recipe {config.recipe}, the default of {path} on {jax.devices()[0].platform} devices; "
        f"{path} lists the others, which are chosen by --config={path}:RECIPE"
    )


def main():
    config = CONFIG.value
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    if ":" not in os.path.basename(path) and jax.process_index() == 0:
        print(default_recipe_notice(config, path), flush=True)
    if config.dataset.name == "images":
        images.settle(config)
    workdir = WORKDIR.value or os.path.join("runs", f"{config.name}-{config.recipe}")
    command = shlex.join([os.path.basename(sys.executable), *sys.argv])
    return loop.train(config, workdir, lambda: open_data(config), command)


if __name__ == "__main__":
    _program.run(main, loop.TrainingError, WorkdirError, connect=process_flags.connect)
