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
from typing import TextIO

import jax
import tensorboardX
from flax import traverse_util
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from lavae_jax import checkpoints, compatibility, figures
from lavae_jax.checkpoints import Checkpoint
from lavae_jax.errors import UserError

# Fields that may differ when a run resumes: they change when things happen, not what happens.
MAY_CHANGE = ("num_train_steps", "log_every_steps", "eval_every_steps", "checkpoint_every_steps")
MAY_CHANGE += ("keep_checkpoints", "dataset.data_dir", "dataset.mnist_dir")
IMAGES = "dataset.images"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
BEST = "held_out_neg_elbo"  # the checkpoint with the lowest is kept


class WorkdirError(UserError):
    """The folder cannot be used for this run; the message says why and what to do."""


def check(workdir: pathlib.Path, config: ConfigDict) -> None:
    """Refuses a folder that cannot be written, is in use, or belongs to another config's run."""
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
            f"{workdir} holds a run with another config:\n"
            + "\n".join(f"  {line}" for line in differing)
            + "\nChoose another --workdir, or the config of that run."
        )


@contextlib.contextmanager
def claim(workdir: pathlib.Path, config: ConfigDict) -> Iterator["RunFiles"]:
    """The files of this process's run, as long as it lasts; of several, one writes."""
    if jax.process_index() != 0:
        yield NoFiles(workdir)
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        opened = (workdir / ".lock").open("a+")
    except OSError as error:
        raise WorkdirError(f"--workdir={workdir} cannot be written to: {error.strerror}") from error
    with opened:  # whose end frees the lock, as does the end of the process, however it comes
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
    """The workdir of a run."""

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.checkpoints = workdir / "checkpoints"
        self._metrics = self._events = None

    def load_newest(self) -> Checkpoint | None:
        return checkpoints.load_newest(self.checkpoints)

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        checkpoints.save(self.checkpoints, checkpoint)
        checkpoints.prune(self.checkpoints, keep, BEST, newest=checkpoint.step)

    def open(self, config: ConfigDict, step: int) -> None:
        """Writes the config and the environment, and resumes the metrics after `step`."""
        _write(self.workdir / "config.json", json.dumps(plain(config), indent=1))
        _write(self.workdir / "environment.json", json.dumps(_environment(), indent=1))
        path = self.workdir / "metrics.jsonl"
        earlier = [r for r in read_metrics(path) if r["step"] <= step] if path.exists() else []
        _write(path, "".join(json.dumps(record) + "\n" for record in earlier))
        self._metrics = path.open("a", buffering=1)
        self._events = tensorboardX.SummaryWriter(str(self.workdir / "events"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._metrics.write(
            json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n"
        )
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def write_picture(self, step: int, draw: Callable[[], Figure]) -> None:
        path = self.picture(step)
        path.parent.mkdir(exist_ok=True)
        figures.save(draw(), path)

    def picture(self, step: int) -> pathlib.Path:
        """The picture of the evaluation after a step."""
        return self.workdir / "pictures" / f"step_{step:08}.png"

    def print(self, text: str) -> None:
        """For the console of the process that writes."""
        print(text, flush=True)

    def close(self) -> None:
        for opened in (self._metrics, self._events):
            if opened is not None:
                opened.close()


class NoFiles(RunFiles):
    """The same for a process that neither reads nor writes."""

    def load_newest(self):
        return None

    def save(self, checkpoint, keep):
        pass

    def open(self, config, step):
        pass

    def write(self, step, values):
        pass

    def write_picture(self, step, draw):
        pass

    def print(self, text):
        pass


def read_metrics(path: pathlib.Path) -> list[dict]:
    """The lines of metrics.jsonl, without what a crash cut off."""
    records = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "step" in record:
                records.append(record)
    return records


def _write(path: pathlib.Path, text: str) -> None:
    """Replaces a file at once, or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def plain(config: ConfigDict) -> dict:
    """The config as JSON gives it back."""
    return json.loads(json.dumps(config.to_dict()))


def flatten(config: dict) -> dict:
    """Values by their path, such as model.channels."""
    return traverse_util.flatten_dict(config, sep=".")


def difference(there: dict, here: dict) -> list[str]:
    """The fields in which two configs differ, a line each; those that are free may."""
    there, here = flatten(there), flatten(here)
    if "content" not in str(there.get(IMAGES)):  # a fingerprint of names and sizes, from before
        there.pop(IMAGES, None)
        here.pop(IMAGES, None)
    return [
        f"{name}: {there.get(name, 'absent')!r} there, {here.get(name, 'absent')!r} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name) and name not in MAY_CHANGE
    ]


def _git_revision(root: pathlib.Path) -> str | None:
    """Of the checkout that the code is run from; None for an installed package."""
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
