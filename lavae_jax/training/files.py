"""The files of a run: its config, environment, metrics and checkpoints."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import jax
import tensorboardX
from flax import traverse_util
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from lavae_jax import checkpoints, compatibility, figures
from lavae_jax.checkpoints import Checkpoint
from lavae_jax.errors import UserError

# Fields that may differ when a run resumes, since no training step depends on them.
MAY_CHANGE = (
    "num_train_steps",
    "log_every_steps",
    "eval_every_steps",
    "checkpoint_every_steps",
    "keep_checkpoints",
    "dataset.data_dir",
    "dataset.mnist_dir",
)
IMAGES = "dataset.images"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
BEST = "held_out_neg_elbo"  # the checkpoint with the lowest value is kept


class WorkdirError(UserError):
    """The folder cannot be used for this run; the message says why and what to do."""


def check(workdir: pathlib.Path, config: ConfigDict) -> None:
    """Checks that a folder can be used for a run.

    Args:
        workdir: the run's folder, which need not exist.
        config: the run's config.

    Raises:
        WorkdirError: if the folder is not writable, is in use, or has a run with another config.
    """
    there = next(path for path in (workdir, *workdir.absolute().parents) if path.exists())
    if not there.is_dir():
        raise WorkdirError(f"--workdir={workdir}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise WorkdirError(f"--workdir={workdir}: {there} cannot be written to")
    if (workdir / ".lock").exists():
        with (workdir / ".lock").open("a+") as opened:
            _lock(opened, workdir)
    path = workdir / "config.json"
    if not path.exists():
        return
    try:
        earlier = compatibility.upgrade_config(json.loads(path.read_text()))
        differing = difference(earlier, plain(config))
    except (ValueError, AttributeError) as error:
        raise WorkdirError(
            f"{path} cannot be read ({error}). Restore it, or choose another --workdir"
        ) from error
    if differing:
        raise WorkdirError(
            f"{workdir} contains a run with a different config:\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nChoose another --workdir, or the config of that run."
        )


@contextlib.contextmanager
def claim(workdir: pathlib.Path, config: ConfigDict) -> Iterator["RunFiles"]:
    """Locks a folder for a run and opens the run's files.

    Args:
        workdir: the run's folder, which is created if necessary.
        config: the run's config.

    Yields:
        The run's files in process 0, the only one that writes, and `NoFiles` in the others.

    Raises:
        WorkdirError: if the folder is not writable, or is in use.
    """
    if jax.process_index() != 0:
        yield NoFiles(workdir)
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        opened = (workdir / ".lock").open("a+")
    except OSError as error:
        raise WorkdirError(f"--workdir={workdir} cannot be written to: {error.strerror}") from error
    with opened:  # closing the file releases the lock, as does the end of the process
        _lock(opened, workdir)
        opened.truncate(0)
        opened.write(f"process {os.getpid()} on {socket.gethostname()}")
        opened.flush()
        with contextlib.closing(RunFiles(workdir)) as files:
            yield files


def _lock(opened: TextIO, workdir: pathlib.Path) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.seek(0)
        raise WorkdirError(
            f"{workdir} is in use by {opened.read() or 'another process'}. Wait for it, stop it, "
            "or choose another --workdir"
        ) from None


class RunFiles:
    """The files in a run's folder.

    Attributes:
        workdir: the folder.
        checkpoints: the folder of the checkpoints.
    """

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.checkpoints = workdir / "checkpoints"
        self._metrics: Any = None  # files, once they are open
        self._events: Any = None

    def load_newest(self) -> Checkpoint | None:
        """Loads the newest intact checkpoint.

        Returns:
            The checkpoint; None if the run has none.

        Raises:
            CheckpointError: if the run has checkpoints, but all are damaged.
        """
        return checkpoints.load_newest(self.checkpoints)

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Writes a checkpoint and deletes old ones.

        Args:
            checkpoint: the checkpoint.
            keep: how many of the newest are kept, in addition to the one with the lowest `BEST`.
        """
        checkpoints.save(self.checkpoints, checkpoint)
        checkpoints.prune(self.checkpoints, keep, BEST, newest=checkpoint.step)

    def open(self, config: ConfigDict, step: int) -> None:
        """Writes the config and the environment, and resumes the metrics.

        Args:
            config: the run's config.
            step: steps completed so far; metrics of later steps are deleted.
        """
        _write(self.workdir / "config.json", json.dumps(plain(config), indent=1))
        _write(self.workdir / "environment.json", json.dumps(_environment(), indent=1))
        path = self.workdir / "metrics.jsonl"
        earlier = [r for r in read_metrics(path) if r["step"] <= step] if path.exists() else []
        _write(path, "".join(json.dumps(record) + "\n" for record in earlier))
        self._metrics = path.open("a", buffering=1)
        self._events = tensorboardX.SummaryWriter(str(self.workdir / "events"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes metrics to metrics.jsonl and to TensorBoard's events.

        Args:
            step: steps completed so far.
            values: the metrics by name.
        """
        self._metrics.write(
            json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n"
        )
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def write_picture(self, step: int, draw: Callable[[], Figure]) -> None:
        """Writes the picture of an evaluation.

        Args:
            step: steps completed so far.
            draw: makes the figure.
        """
        path = self.picture(step)
        path.parent.mkdir(exist_ok=True)
        figures.save(draw(), path)

    def picture(self, step: int) -> pathlib.Path:
        """Names the picture of an evaluation.

        Args:
            step: steps completed before the evaluation.

        Returns:
            The path of the file.
        """
        return self.workdir / "pictures" / f"step_{step:08}.png"

    def print(self, text: str) -> None:
        """Prints to the console, in process 0 only.

        Args:
            text: one or several lines.
        """
        print(text, flush=True)

    def close(self) -> None:
        """Closes the files that are open."""
        for opened in (self._metrics, self._events):
            if opened is not None:
                opened.close()


class NoFiles(RunFiles):
    """Replaces `RunFiles` where no file may be touched: in forecasts, and outside of process 0."""

    def load_newest(self):
        """Loads nothing, since process 0 broadcasts its checkpoint.

        Returns:
            None.
        """
        return None

    def save(self, checkpoint, keep):
        """Does nothing.

        Args:
            checkpoint: ignored.
            keep: ignored.
        """
        pass

    def open(self, config, step):
        """Does nothing.

        Args:
            config: ignored.
            step: ignored.
        """
        pass

    def write(self, step, values):
        """Does nothing.

        Args:
            step: ignored.
            values: ignored.
        """
        pass

    def write_picture(self, step, draw):
        """Does nothing.

        Args:
            step: ignored.
            draw: ignored.
        """
        pass

    def print(self, text):
        """Does nothing.

        Args:
            text: ignored.
        """
        pass


def read_metrics(path: pathlib.Path) -> list[dict]:
    """Reads metrics.jsonl, without lines that a crash truncated.

    Args:
        path: the file.

    Returns:
        A dictionary for each line: its "step", its "time" and the metrics by name.
    """
    records = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "step" in record:
                records.append(record)
    return records


def _write(path: pathlib.Path, text: str) -> None:
    """Replaces a file atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def plain(config: ConfigDict) -> dict:
    """Converts a config to types that JSON can represent.

    Args:
        config: the config.

    Returns:
        The config as it is read back from JSON.
    """
    return json.loads(json.dumps(config.to_dict()))


def flatten(config: dict) -> dict:
    """Flattens a nested config.

    Args:
        config: nested dictionaries.

    Returns:
        Values by their path, such as model.channels.
    """
    return traverse_util.flatten_dict(config, sep=".")


def difference(there: dict, here: dict) -> list[str]:
    """Lists the fields in which two configs differ, except those of `MAY_CHANGE`.

    Args:
        there: the config of a stored run, as by `plain`.
        here: the config of this run, as by `plain`.

    Returns:
        A line for each field.
    """
    there, here = flatten(there), flatten(here)
    if "content" not in str(there.get(IMAGES)):  # an older fingerprint, of names and sizes
        there.pop(IMAGES, None)
        here.pop(IMAGES, None)
    return [
        f"{name}: {there.get(name, 'absent')!r} in the stored config, "
        f"{here.get(name, 'absent')!r} in this one"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name) and name not in MAY_CHANGE
    ]


def _git_revision(root: pathlib.Path) -> str | None:
    """The revision of the checkout that the code runs from; None for an installed package."""
    if not (root / ".git").exists():  # another repository may contain site-packages
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def _environment() -> dict:
    return {
        "command": sys.argv,
        "git_revision": _git_revision(pathlib.Path(__file__).resolve().parents[2]),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": [str(d) for d in jax.devices()],
        "num_processes": jax.process_count(),
        "compiler_flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }
