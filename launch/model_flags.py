"""The flags that name a trained model and its data, for every program that uses one."""

from absl import flags

import datasets
import lavae_jax

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A run's folder, one of its checkpoints, or the name of shipped weights."
)
DATA_DIR = flags.DEFINE_string("data_dir", None, "Where data sets live [that of the run].")
MNIST_DIR = flags.DEFINE_string(
    "mnist_dir", None, "A folder with MNIST's training files [that of the run]."
)
flags.mark_flag_as_required("checkpoint")


def load() -> lavae_jax.Model | lavae_jax.Baseline:
    return lavae_jax.load(CHECKPOINT.value)


def builder_options(model: lavae_jax.Model | lavae_jax.Baseline) -> dict:
    """What `datasets.make_builder` needs to name the data set that a model was trained on."""
    return datasets.options(
        model.config.dataset, data_dir=DATA_DIR.value, mnist_dir=MNIST_DIR.value
    )
