"""The scene data sets: `make_builder` names one, `prepare` puts it on disk."""

import contextlib
import dataclasses
import fcntl
import pathlib
import shutil

import tensorflow_datasets as tfds
from absl import logging

from datasets.multi_dsprites import multi_dsprites_dataset_builder
from datasets.multi_mnist import digits, multi_mnist_dataset_builder
from datasets.scenes import SceneBuilder

BUILDERS = {
    "multi_mnist": multi_mnist_dataset_builder.Builder,
    "multi_dsprites": multi_dsprites_dataset_builder.Builder,
}


@contextlib.contextmanager
def _quiet_tfds():
    """TFDS warns of every data set that is not in its catalogue."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class BuildError(Exception):
    """A data set could not be generated; the message says why and what to do."""


def names() -> list[str]:
    """Every data set by its full name, such as multi_mnist/1k."""
    return [f"{name}/{c}" for name, cls in BUILDERS.items() for c in cls.builder_configs]


@_quiet_tfds()
def make_builder(
    dataset: str, *, data_dir: str | None = None, mnist_dir: str | None = None, **overrides
) -> SceneBuilder:
    """The builder of `dataset`: multi_mnist/1k, multi_mnist/10k or multi_dsprites.

    `overrides` replaces fields of the builder's config (canvas=96, max_count=5,
    ...); the result is a data set of its own, with the changes in its name.
    `mnist_dir` is a folder with MNIST's idx files; see `digits.load_pool`.
    """
    name, _, variant = dataset.partition("/")
    if name not in BUILDERS or variant not in ("", *BUILDERS[name].builder_configs):
        raise ValueError(f"no data set is called {dataset!r}; there are {', '.join(names())}")
    cls = BUILDERS[name]
    config = cls.builder_configs[variant] if variant else cls.BUILDER_CONFIGS[0]
    kwargs = {"mnist_dir": mnist_dir} if name == "multi_mnist" else {}
    config = _override(config, overrides)
    return cls(config=config, data_dir=data_dir, file_format="array_record", **kwargs)


def parse_overrides(text: str) -> dict[str, int]:
    """Fields of a builder's config out of text such as canvas=96,max_count=5."""
    pairs = dict(item.partition("=")[::2] for item in text.split(",") if item)
    for field, value in pairs.items():
        if not value.isdigit():
            raise ValueError(f"changes to a data set are field=number, not {field}={value}")
    return {field: int(value) for field, value in pairs.items()}


def _override(config, overrides: dict):
    known = {f.name: f.type for f in dataclasses.fields(config) if f.type is int}
    for field, value in overrides.items():
        if field not in known:
            raise ValueError(f"{field!r} is not a field of a data set; there are {list(known)}")
        if type(value) is not int:
            raise ValueError(f"{field}={value!r} must be a whole number")
    changes = {k: v for k, v in sorted(overrides.items()) if v != getattr(config, k)}
    if not changes:
        return config
    name = "-".join([config.name, *(f"{k}{v}" for k, v in changes.items())])
    return dataclasses.replace(config, name=name, **changes)


@_quiet_tfds()
def prepare(builder: SceneBuilder) -> None:
    """Generates the data set unless it is on disk already.

    It appears under its own name only when it is whole. A second process that
    wants the same data set waits for the first.
    """
    if builder.is_prepared():
        return
    folder = pathlib.Path(builder.data_dir).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:  # which frees it, as does the end of the process
        fcntl.flock(lock, fcntl.LOCK_EX)
        if builder.is_prepared():  # by another process, while this one waited
            builder.info.read_from_directory(builder.data_dir)
            return
        for leftover in folder.glob("incomplete.*"):  # of a build that was killed
            shutil.rmtree(leftover)
        tfds.disable_progress_bar()  # it knows no totals; the builders have their own
        try:
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(try_download_gcs=False)
            )
        except (OSError, RuntimeError, digits.SourceError) as error:
            raise BuildError(
                f"{builder.info.full_name} was not built, and nothing of it is kept: {error}"
            ) from error
