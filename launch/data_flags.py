"""The flags that name a data set, for every program that reads one."""

from absl import app, flags, logging

import datasets

DATASET = flags.DEFINE_string("dataset", "multi_mnist/1k", f"One of {', '.join(datasets.names())}.")
SET = flags.DEFINE_string(
    "set", "", "Changes to the data set as field=number, such as canvas=96,max_count=5."
)
DATA_DIR = flags.DEFINE_string("data_dir", None, "Where data sets live [TFDS's own default].")
MNIST_DIR = flags.DEFINE_string(
    "mnist_dir",
    None,
    "A folder with MNIST's training files (idx, gzip or not); not needed for multi_mnist/1k.",
)


def refuse_arguments(argv: list[str]) -> None:
    """absl passes on whatever is not a flag; a stray word is a mistake."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of all that is not in its catalogue
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")


def make_builder() -> datasets.SceneBuilder:
    try:
        return datasets.make_builder(
            DATASET.value,
            data_dir=DATA_DIR.value,
            mnist_dir=MNIST_DIR.value,
            **datasets.parse_overrides(SET.value),
        )
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def prepare(builder: datasets.SceneBuilder) -> None:
    try:
        datasets.prepare(builder)
    except datasets.BuildError as error:
        raise SystemExit(str(error)) from None
