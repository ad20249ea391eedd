"""The flags that name a trained model and its data, for every program that uses one."""

from absl import app, flags, logging

import datasets
import lavae_jax
from lavae_jax.checkpoints import CheckpointError

CHECKPOINT = flags.DEFINE_string("checkpoint", None, "A run's folder, a checkpoint, or a name.")
DATA_DIR = flags.DEFINE_string("data_dir", None, "Where data sets live [that of the run].")
MNIST_DIR = flags.DEFINE_string("mnist_dir", None, "A folder with MNIST's training files.")
flags.mark_flag_as_required("checkpoint")


def load(path: str) -> lavae_jax.Model | lavae_jax.Baseline:
    try:
        return lavae_jax.load(path)
    except (OSError, CheckpointError) as error:
        raise SystemExit(f"error: {error}") from None


def open_model(
    argv: list[str],
) -> tuple[lavae_jax.Model | lavae_jax.Baseline, datasets.SceneBuilder]:
    """The model and the data set that it was trained on, built if it is not there."""
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    model = load(CHECKPOINT.value)
    builder = builder_of(model)
    try:
        datasets.prepare(builder)
    except datasets.BuildError as error:
        raise SystemExit(f"error: {error}") from None
    return model, builder


def builder_of(model: lavae_jax.Model | lavae_jax.Baseline) -> datasets.SceneBuilder:
    """The data set that a model was trained on, whether it is built or not."""
    settings = model.run.dataset
    try:
        return datasets.make_builder(
            settings.name,
            data_dir=DATA_DIR.value or settings.data_dir or None,
            mnist_dir=MNIST_DIR.value or settings.mnist_dir or None,
            **datasets.parse_overrides(settings.overrides),
        )
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
