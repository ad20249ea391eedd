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


def builder_options(
    model: lavae_jax.Model | lavae_jax.Baseline, dataset: str | None = None
) -> dict:
    """What `datasets.make_builder` needs for a data set: that which a model was trained on."""
    described = {"mnist_dir": "", **model.config.dataset}
    if dataset:
        described.update(name=dataset, overrides="")
    if described["name"] == "images":
        raise datasets.DatasetError(
            "this model was trained on images of somebody's own, and there are no test scenes of "
            "them; launch/infer.py applies it to others"
        )
    return datasets.options(described, data_dir=DATA_DIR.value, mnist_dir=MNIST_DIR.value)
