"""multi-MNIST: digits on a black canvas, binarised, or grey as in AIR."""

import dataclasses
import os

import tensorflow_datasets as tfds

from datasets import scenes
from datasets.multi_mnist import air, digits


@dataclasses.dataclass(kw_only=True)
class MultiMnistConfig(scenes.SceneConfig):
    """A multi-MNIST data set; see `scenes.SceneConfig` for the other fields.

    Attributes:
        pool: the number of different digits, the same of each class.
        first: the index, in each class of MNIST's training file, of the pool's first digit.
        strokes: how digits are drawn, a key of `digits.STROKES`.
    """

    patch: int = 15
    pool: int
    first: int = 0
    strokes: str = "plain"

    def validate(self) -> None:
        """Checks the fields.

        Raises:
            ValueError: if a value is out of range, or there is no such pool of digits.
        """
        super().validate()
        if self.pool != digits.ALL or self.first:
            digits.pool_fingerprints(self.pool, self.first)


@dataclasses.dataclass(kw_only=True)
class AirConfig(MultiMnistConfig):
    """The scenes of AIR; `patch` is the size of a digit before it is scaled down. See `air`."""

    canvas: int = 50
    patch: int = 28
    apart: int | None = 0
    max_count: int = 2
    crowd: int = 2
    num_train: int = 60_000
    pool: int = digits.ALL

    grey = True


def _unseen(pool: str, first: int, strokes: str, **changes) -> MultiMnistConfig:
    """Makes the config of 1,000 digits that are not in a pool, to test generalisation."""
    words = [pool, "unseen", *([] if strokes == "plain" else [strokes])]
    words += ["anywhere"] if changes else []
    description = f"Digits that multi-MNIST-{pool} does not have; strokes: {strokes}."
    return MultiMnistConfig(
        name="_".join(words),
        description=description,
        pool=1_000,
        first=first,
        strokes=strokes,
        num_train=1_000,
        **changes,
    )


def _overlapping(pool: str, size: int, apart: int) -> MultiMnistConfig:
    """Makes the config of digits that may overlap, with corners at least `apart` pixels apart."""
    return MultiMnistConfig(
        name=f"{pool}_apart{apart}" if apart else f"{pool}_anywhere",
        description=f"The digits of multi-MNIST-{pool}, "
        + (f"corners at least {apart} pixels apart." if apart else "anywhere on the canvas."),
        pool=size,
        apart=apart,
    )


class Builder(scenes.SceneBuilder):
    """See README.md in this folder for the features and the digits' sources."""

    BUILDER_CONFIGS = (
        MultiMnistConfig(name="1k", pool=1_000, description="The paper's multi-MNIST-1k."),
        MultiMnistConfig(name="10k", pool=10_000, description="The paper's multi-MNIST-10k."),
        *(_unseen("1k", 100, strokes) for strokes in digits.STROKES),
        *(_unseen("10k", 1_000, strokes) for strokes in digits.STROKES),
        *(_overlapping("1k", 1_000, apart) for apart in (0, 8, 11)),
        _overlapping("10k", 10_000, 0),
        _unseen("1k", 100, "plain", apart=0),
        _unseen("10k", 1_000, "plain", apart=0),
        AirConfig(name="air", description="The data set of Attend, Infer, Repeat."),
    )
    CHANNELS = 1
    ATTRIBUTES = ("labels",)
    OCCLUDE = False

    def __init__(self, *, mnist_dir: str | os.PathLike | None = None, **kwargs):
        self._mnist_dir = mnist_dir
        super().__init__(**kwargs)

    def make_bank(self, dl_manager=None):
        """Loads the digits.

        Args:
            dl_manager: downloads the digits if necessary; without it, nothing is downloaded.

        Returns:
            The digits as sprites, and their labels.
        """
        tfds_dirs = dict.fromkeys([self._data_dir_root, tfds.core.constants.DATA_DIR])
        config = self.builder_config
        pool = digits.load_pool(
            config.pool, self._mnist_dir, dl_manager, tuple(tfds_dirs), config.first
        )
        if isinstance(config, AirConfig):
            return scenes.Bank(pool.image[..., None], {"labels": pool.label})
        sprites = digits.STROKES[config.strokes](pool.image, config.patch)
        return scenes.Bank(sprites[..., None], {"labels": pool.label})

    def _compose(self, bits, bank, num_scenes, counts):
        config = self.builder_config
        if not isinstance(config, AirConfig):
            return super()._compose(bits, bank, num_scenes, counts)
        most = max(config.max_objects, counts[1])
        return air.compose(
            bits, bank, num_scenes, counts, config.canvas, most, config.patch, config.apart
        )
