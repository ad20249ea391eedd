"""multi-MNIST: binarised digits, no two overlapping, on a black canvas."""

import dataclasses
import os

import tensorflow_datasets as tfds

from datasets import scenes
from datasets.multi_mnist import digits


@dataclasses.dataclass(kw_only=True)
class MultiMnistConfig(scenes.SceneConfig):
    """
    Attributes:
        pool: the number of different digits, the same of each class.
        first: of each class, the pool begins with this digit of MNIST's training file.
        strokes: how digits are drawn, one of `digits.STROKES`.
    """

    patch: int = 15
    pool: int
    first: int = 0
    strokes: str = "plain"

    def validate(self) -> None:
        super().validate()
        digits.pool_fingerprints(self.pool, self.first)


def _unseen(pool: str, first: int, strokes: str) -> MultiMnistConfig:
    """For tests of models that were trained on a pool: 1,000 digits that are not in it."""
    name = f"{pool}_unseen" if strokes == "plain" else f"{pool}_unseen_{strokes}"
    description = f"Digits that multi-MNIST-{pool} does not have; strokes: {strokes}."
    return MultiMnistConfig(
        name=name,
        description=description,
        pool=1_000,
        first=first,
        strokes=strokes,
        num_train=1_000,
    )


class Builder(scenes.SceneBuilder):
    """See README.md in this folder for the features and the digits' sources."""

    BUILDER_CONFIGS = (
        MultiMnistConfig(name="1k", pool=1_000, description="The paper's multi-MNIST-1k."),
        MultiMnistConfig(name="10k", pool=10_000, description="The paper's multi-MNIST-10k."),
        *(_unseen("1k", 100, strokes) for strokes in digits.STROKES),
        *(_unseen("10k", 1_000, strokes) for strokes in digits.STROKES),
    )
    CHANNELS = 1
    ATTRIBUTES = ("labels",)

    def __init__(self, *, mnist_dir: str | os.PathLike | None = None, **kwargs):
        self._mnist_dir = mnist_dir
        super().__init__(**kwargs)

    def make_bank(self, dl_manager=None):
        tfds_dirs = dict.fromkeys([self._data_dir_root, tfds.core.constants.DATA_DIR])
        config = self.builder_config
        pool = digits.load_pool(
            config.pool, self._mnist_dir, dl_manager, tuple(tfds_dirs), config.first
        )
        sprites = digits.STROKES[config.strokes](pool.image, config.patch)
        return scenes.Bank(sprites[..., None], {"labels": pool.label})
