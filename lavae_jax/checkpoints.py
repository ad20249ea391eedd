"""Atomic, checksummed checkpoints.

A checkpoint is the folder `<folder>/<step>`: the arrays in Orbax's files, and `meta.json` with all
other information and the SHA-256 of every file. It is written under another name and renamed when
all of it is on disk, so a process that dies while saving leaves nothing that could be mistaken for
a checkpoint. A checkpoint that is damaged later no longer matches its checksums and is skipped.
Orbax's CheckpointManager is not used, because it keeps no checksums and needs every process to take
part.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from lavae_jax import compatibility
from lavae_jax.errors import UserError

_ARRAYS, _META, _UNFINISHED = "arrays", "meta.json", ".unfinished-"


class CheckpointError(UserError):
    """A checkpoint could not be written, or does not match what it is loaded into."""


class Checkpoint(NamedTuple):
    """A checkpoint in memory.

    Attributes:
        step: the training step.
        arrays: the arrays of a tree, by their paths in it; see `flatten`.
        meta: all other information, in JSON's types.
    """

    step: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """Flattens a tree of arrays.

    Args:
        tree: any pytree.

    Returns:
        The arrays by their path in the tree.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): np.asarray(leaf) for path, leaf in leaves}


def path_name(path: tuple[Any, ...]) -> str:
    """Names the path of a leaf.

    Args:
        path: the keys from the root to the leaf, in the form of `jax.tree_util`.

    Returns:
        The keys, separated by dots.
    """
    return jax.tree_util.keystr(path, simple=True, separator=".")


def unflatten(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """Puts arrays into a tree; the inverse of `flatten`.

    Args:
        arrays: the arrays by their paths in the tree.
        like: a tree of the expected structure, shapes and types: arrays, or their shapes.

    Returns:
        A tree with the structure of `like`.

    Raises:
        CheckpointError: names, shapes or types differ.
    """
    wanted = {path_name(p): leaf for p, leaf in jax.tree_util.tree_flatten_with_path(like)[0]}
    missing = [f"{name} is missing" for name in sorted(wanted.keys() - arrays.keys())]
    unknown = [f"{name} is unknown" for name in sorted(arrays.keys() - wanted.keys())]
    wrong = missing + unknown or [
        f"{name}: {arrays[name].shape} {arrays[name].dtype}, not {array.shape} {array.dtype}"
        for name, array in wanted.items()
        if (arrays[name].shape, arrays[name].dtype) != (array.shape, array.dtype)
    ]
    if wrong:
        shown = "; ".join(wrong[:5]) + ("; ..." if len(wrong) > 5 else "")
        raise CheckpointError(f"the checkpoint does not fit the model: {shown}")
    return jax.tree_util.tree_map_with_path(lambda path, _: arrays[path_name(path)], like)


def steps(folder: pathlib.Path) -> list[int]:
    """Lists the checkpoints in a folder.

    Args:
        folder: the folder of the checkpoints; it need not exist.

    Returns:
        Their steps, the oldest first.
    """
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def save(folder: pathlib.Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint. If that fails, earlier checkpoints are unchanged.

    Args:
        folder: the folder of the checkpoints; created if missing.
        checkpoint: what to write. An older checkpoint of the same step is replaced.

    Raises:
        CheckpointError: the checkpoint could not be written.
    """
    final = folder / str(checkpoint.step)
    unfinished = folder / f"{_UNFINISHED}{checkpoint.step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover)
        unfinished.mkdir()
        with _checkpointer() as checkpointer:
            checkpointer.save(unfinished.resolve() / _ARRAYS, checkpoint.arrays)
        # It contains the path of the folder, which is private; Orbax does not need the file.
        (unfinished / _ARRAYS / "commit_success.txt").unlink(missing_ok=True)
        meta = {**checkpoint.meta, "step": checkpoint.step, "sha256": _sums(unfinished)}
        (unfinished / _META).write_text(json.dumps(meta, indent=1))
        _sync(unfinished)
        if final.exists():  # damaged, or left by a run that was resumed at an earlier step
            shutil.rmtree(final)
        os.rename(unfinished, final)
        _sync_folder(folder)
    except Exception as error:  # Orbax reports a full disk in several ways
        shutil.rmtree(unfinished, ignore_errors=True)
        earlier = newest_whole(folder)
        kept = "there is no earlier one" if earlier is None else f"{earlier} is intact"
        raise CheckpointError(
            f"the checkpoint of step {checkpoint.step} could not be written to {folder} "
            f"({_first_line(error)}); {kept}"
        ) from error


def load(path: pathlib.Path) -> Checkpoint:
    """Reads a checkpoint.

    Args:
        path: the path of the checkpoint.

    Returns:
        The checkpoint; its arrays have the names of this version.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    try:
        meta = _checked_meta(path)
        with _checkpointer() as checkpointer:
            arrays = checkpointer.restore(path.resolve() / _ARRAYS)
    except CheckpointError:
        raise
    except Exception as error:  # Orbax and its formats report damage in many ways
        raise CheckpointError(f"{path} cannot be read: {_first_line(error)}") from error
    arrays = compatibility.upgrade_arrays({k: np.asarray(v) for k, v in arrays.items()})
    return Checkpoint(meta.pop("step"), arrays, meta)


def load_newest(folder: pathlib.Path) -> Checkpoint | None:
    """Reads the newest intact checkpoint; damaged ones are skipped with a warning.

    If all checkpoints are damaged, that is an error: a run that started from scratch would
    overwrite what may be recoverable.

    Args:
        folder: the folder of the checkpoints.

    Returns:
        The checkpoint; None if there is not even a damaged one.

    Raises:
        CheckpointError: all checkpoints are damaged.
    """
    damaged = []
    for step in reversed(steps(folder)):
        try:
            found = load(folder / str(step))
        except CheckpointError as error:
            damaged.append(error)
            continue
        for one in damaged:
            logging.warning("%s; an earlier checkpoint is used", one)
        return found
    if damaged:
        raise CheckpointError(
            f"{folder} contains no intact checkpoint, only {len(damaged)} damaged (the newest: "
            f"{damaged[0]}). Restore them from a copy, or move them away to start from scratch"
        )
    return None


def prune(folder: pathlib.Path, keep: int, metric: str, newest: int) -> None:
    """Deletes all checkpoints but the last few and the best.

    Checkpoints of steps after `newest` could not be read when the run was resumed. They are not
    counted, but kept for inspection, as are damaged ones.

    Args:
        folder: the folder of the checkpoints.
        keep: how many of the last checkpoints are kept, at least 1.
        metric: the name of a number in `meta`. The checkpoint with the lowest value is also kept.
        newest: the step that was just saved.
    """
    whole = {}
    for step in steps(folder):
        if step <= newest:
            with contextlib.suppress(CheckpointError):
                whole[step] = _checked_meta(folder / str(step))
    kept = set(sorted(whole)[-max(keep, 1) :])
    scores = {step: meta[metric] for step, meta in whole.items() if metric in meta}
    if scores:
        kept.add(min(scores, key=scores.__getitem__))
    for step in whole.keys() - kept:
        shutil.rmtree(folder / str(step))


def newest_whole(folder: pathlib.Path) -> pathlib.Path | None:
    """Finds the newest checkpoint whose files match their checksums.

    Args:
        folder: the folder of the checkpoints.

    Returns:
        The path of the checkpoint; None if there is none.
    """
    for step in reversed(steps(folder)):
        with contextlib.suppress(CheckpointError):
            _checked_meta(folder / str(step))
            return folder / str(step)
    return None


def _checked_meta(path: pathlib.Path) -> dict[str, Any]:
    """The contents of meta.json, after a check that all files in it match their checksums."""
    try:
        meta = json.loads((path / _META).read_text())
        sums = {name: _sum(path / name) for name in meta["sha256"]}
        if meta.pop("sha256") != sums or not sums:
            raise CheckpointError(f"{path} is damaged: its files do not match their checksums")
        meta["step"] = int(meta["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {_first_line(error)}") from error
    return meta


def _checkpointer() -> Any:
    """Makes a checkpointer with which this process works without waiting for the others."""
    import orbax.checkpoint as ocp  # slow to import, and not needed to use a shipped model

    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone
    )


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in path.rglob("*") if p.is_file() and p != path / _META)


def _sums(path: pathlib.Path) -> dict[str, str]:
    return {str(p.relative_to(path)): _sum(p) for p in _files(path)}


def _sum(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(path: pathlib.Path) -> None:
    for file in (*_files(path), path / _META):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _sync_folder(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _first_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
