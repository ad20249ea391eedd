"""multi-MNIST: binarised digits, no two overlapping, on a black canvas."""

import dataclasses
import os

import tensorflow_datasets as tfds

from datasets import scenes
from datasets.multi_mnist import digits


@dataclasses.dataclass(kw_only=True)
class MultiMnistConfig(scenes.SceneConfig):
    """Attributes: pool: the number of different digits, the same of each class."""

    patch: int = 15
    pool: int

    def validate(self) -> None:
        super().validate()
        digits.pool_fingerprints(self.pool)


class Builder(scenes.SceneBuilder):
    """See README.md in this folder for the features and the digits' sources."""

    BUILDER_CONFIGS = (
        MultiMnistConfig(name="1k", pool=1_000, description="The paper's multi-MNIST-1k."),
        MultiMnistConfig(name="10k", pool=10_000, description="The paper's multi-MNIST-10k."),
    )
    CHANNELS = 1
    ATTRIBUTES = ("labels",)

    def __init__(self, *, mnist_dir: str | os.PathLike | None = None, **kwargs):
        self._mnist_dir = mnist_dir
        super().__init__(**kwargs)

    def make_bank(self, dl_manager=None):
        tfds_dirs = dict.fromkeys([self._data_dir_root, tfds.core.constants.DATA_DIR])
        pool = digits.load_pool(
            self.builder_config.pool, self._mnist_dir, dl_manager, tuple(tfds_dirs)
        )
        sprites = digits.shrink(pool.image, self.builder_config.patch)
        return scenes.Bank(sprites[..., None], {"labels": pool.label})
