"""The flags that name a trained model and its data, for every program that uses one."""

from absl import app, flags

import lavae_jax
from lavae_jax.commands import scene_data
from lavae_jax.errors import UserError

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "A run's folder, one of its checkpoints, or the name of shipped weights."
)
DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the data sets [that of the run].")
MNIST_DIR = flags.DEFINE_string(
    "mnist_dir", None, "A folder with MNIST's training files [that of the run]."
)
flags.mark_flag_as_required("checkpoint")


def load() -> lavae_jax.Model | lavae_jax.Baseline:
    """Loads the model that the flags name.

    Returns:
        The model.
    """
    return lavae_jax.load(str(CHECKPOINT.value))  # the flag is required


def load_lavae() -> lavae_jax.Model:
    """Loads the LAVAE that the flags name.

    Returns:
        The model.

    Raises:
        UsageError: the model is a baseline.
    """
    model = load()
    if not isinstance(model, lavae_jax.Model):
        raise app.UsageError(
            f"--checkpoint={CHECKPOINT.value} is a baseline, which has no objects; expected a LAVAE"
        )
    return model


def builder_options(
    model: lavae_jax.Model | lavae_jax.Baseline,
    dataset: str | None = None,
    overrides: str | None = None,
) -> dict:
    """Returns the options of `datasets.make_builder` for the data set of a model, or for another.

    Args:
        model: the model.
        dataset: the name of another data set.
        overrides: changes to the data set, instead of those of the run.

    Returns:
        The arguments of `datasets.make_builder`.

    Raises:
        UserError: the model was trained on custom images, or has another number of channels.
    """
    described = {"mnist_dir": "", **model.config.dataset}
    if dataset:
        described.update(name=dataset, overrides="")
    if overrides is not None:
        described.update(overrides=overrides)
    if described["name"] == "images":
        raise UserError(
            "this model was trained on custom images, which have no test scenes; "
            "`lavae infer` applies it to other images"
        )
    options = scene_data.load().options(
        described, data_dir=DATA_DIR.value, mnist_dir=MNIST_DIR.value
    )
    channels = scene_data.load().make_builder(**options).CHANNELS
    if channels != model.channels:
        raise UserError(
            f"scenes of {described['name']} have {channels} channels, and the model "
            f"{CHECKPOINT.value} has {model.channels}"
        )
    return options
