"""The files of a run: what it was, how it went, and where it can be taken up again."""

import contextlib
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import time

import jax
import tensorboardX
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from lavae_jax import figures

# Fields that may differ when a run is taken up again: they change when things happen,
# not what happens.
FREE = ("num_train_steps", "log_every_steps", "eval_every_steps", "checkpoint_every_steps")
FREE += ("keep_checkpoints", "dataset.data_dir", "dataset.mnist_dir")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")


class ConfigMismatch(Exception):
    """The folder belongs to a run with another config."""


class RunFiles:
    """The workdir of a run; only one process writes to it."""

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.checkpoints = workdir / "checkpoints"

    def check(self, config: ConfigDict) -> None:
        """Refuses if the folder belongs to a run with another config."""
        path = self.workdir / "config.json"
        if path.exists():
            difference = _difference(json.loads(path.read_text()), plain(config))
            if difference:
                raise ConfigMismatch(
                    f"{self.workdir} holds a run with another config:\n"
                    + "\n".join(f"  {line}" for line in difference)
                    + "\nChoose another --workdir, or the config of that run."
                )

    def claim(self, config: ConfigDict) -> None:
        """Notes what the run is."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        _write(self.workdir / "config.json", json.dumps(plain(config), indent=1))
        _write(self.workdir / "environment.json", json.dumps(_environment(), indent=1))

    def open(self, step: int) -> None:
        """Starts or goes on writing metrics; what was written after `step` is dropped."""
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

    def write_picture(self, step: int, figure: Figure) -> None:
        path = self.workdir / "pictures" / f"step_{step:08}.png"
        path.parent.mkdir(exist_ok=True)
        figures.save(figure, path)

    def say(self, text: str) -> None:
        print(text, flush=True)


def read_metrics(path: pathlib.Path) -> list[dict]:
    """The lines of metrics.jsonl, without one that a crash cut off."""
    records = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


def _write(path: pathlib.Path, text: str) -> None:
    """Replaces a file at once, or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def plain(config: ConfigDict) -> dict:
    """The config as JSON gives it back."""
    return json.loads(json.dumps(config.to_dict()))


def _difference(theirs: dict, ours: dict) -> list[str]:
    theirs, ours = flatten(theirs), flatten(ours)
    return [
        f"{name}: {theirs.get(name, 'absent')!r} there, {ours.get(name, 'absent')!r} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name) and name not in FREE
    ]


def flatten(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _environment() -> dict:
    root = pathlib.Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        revision = None
    return {
        "command": sys.argv,
        "git_revision": revision,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": [str(d) for d in jax.devices()],
        "num_processes": jax.process_count(),
    }
