"""The flags that name scenes other than those that a model was trained on."""

from absl import flags

from lavae_jax.commands import scene_data

DATASET = flags.DEFINE_string(
    "dataset",
    None,
    f"The data set [that of training]: {scene_data.names()}.",
)
SET = flags.DEFINE_string(
    "set", None, "Changes to the data set as field=number, such as apart=8 [those of the run]."
)
