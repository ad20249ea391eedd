"""The flags that name a scene data set, for every program that reads one."""

from typing import TYPE_CHECKING

from absl import flags

from lavae_jax.commands import scene_data

if TYPE_CHECKING:
    import datasets

DATASET = flags.DEFINE_string("dataset", "multi_mnist/1k", f"The data set: {scene_data.names()}.")
SET = flags.DEFINE_string(
    "set", "", "Changes to the data set as field=number, such as canvas=96,max_count=5."
)
DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the data sets [TFDS's default].")
MNIST_DIR = flags.DEFINE_string(
    "mnist_dir",
    None,
    "A folder with MNIST's training files (idx, gzip or not); not needed for multi_mnist/1k.",
)


def make_builder() -> "datasets.SceneBuilder":
    """Makes the builder of the data set that the flags name.

    Returns:
        The builder; the data set need not be built yet.
    """
    datasets = scene_data.load()
    return datasets.make_builder(
        DATASET.value,
        data_dir=DATA_DIR.value,
        mnist_dir=MNIST_DIR.value,
        **datasets.parse_overrides(SET.value),
    )
