import json
import shutil

import numpy as np
import pytest

from lavae_jax import checkpoints
from lavae_jax.checkpoints import Checkpoint, CheckpointError

TREE = {
    "params": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "step": np.array(3, np.int32),
    "moments": (np.ones(4, np.float32), np.full((300, 300), 0.1, np.float32)),
}


def write(folder, step, **meta):
    arrays = checkpoints.flatten(TREE)
    arrays["step"] = np.array(step, np.int32)
    checkpoints.save(folder, Checkpoint(step, arrays, meta))


def test_what_is_saved_is_loaded(tmp_path):
    write(tmp_path, 7, data={"next_index": 7})
    loaded = checkpoints.load_newest(tmp_path)
    assert loaded.step == 7
    assert loaded.meta["data"] == {"next_index": 7}
    tree = checkpoints.unflatten(loaded.arrays, TREE)
    assert tree["step"] == 7
    np.testing.assert_array_equal(tree["params"]["kernel"], TREE["params"]["kernel"])
    assert tree["moments"][1].dtype == np.float32


def test_a_folder_may_have_no_checkpoints(tmp_path):
    assert checkpoints.load_newest(tmp_path / "nowhere") is None


def flip_a_byte(path):
    largest = max(path.rglob("d/*"), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def edit_meta(path, edit):
    meta = json.loads((path / "meta.json").read_text())
    edit(meta)
    (path / "meta.json").write_text(json.dumps(meta))


DAMAGES = {
    "a flipped bit": flip_a_byte,
    "no meta": lambda path: (path / "meta.json").unlink(),
    "half a meta": lambda path: (path / "meta.json").write_text('{"step": 2, '),
    "no arrays": lambda path: shutil.rmtree(path / "arrays"),
    "no step in the meta": lambda path: edit_meta(path, lambda meta: meta.pop("step")),
    "no sums in the meta": lambda path: edit_meta(path, lambda meta: meta.pop("sha256")),
    "sums of no file in the meta": lambda path: edit_meta(
        path, lambda meta: meta.update(sha256={})
    ),
    "a list for a meta": lambda path: (path / "meta.json").write_text("[]"),
    "a file gone": lambda path: max(path.rglob("d/*"), key=lambda p: p.stat().st_size).unlink(),
    "an empty folder": lambda path: (shutil.rmtree(path), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, damage, caplog):
    write(tmp_path, 1)
    write(tmp_path, 2)
    DAMAGES[damage](tmp_path / "2")
    with pytest.raises(CheckpointError):
        checkpoints.load(tmp_path / "2")
    assert checkpoints.load_newest(tmp_path).step == 1
    assert "an earlier checkpoint is used" in caplog.text
    write(tmp_path, 2)  # and is replaced when the run gets there again
    assert checkpoints.load_newest(tmp_path).step == 2


def test_a_full_disk_leaves_the_earlier_checkpoint_intact(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "_sums", full)
    with pytest.raises(CheckpointError, match=r"step 2 .*No space left.*/1 is intact"):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    assert checkpoints.load_newest(tmp_path).step == 1


def test_an_unfinished_checkpoint_is_ignored_and_deleted(tmp_path):
    write(tmp_path, 1)
    shutil.copytree(tmp_path / "1", tmp_path / ".unfinished-2")
    assert checkpoints.load_newest(tmp_path).step == 1
    write(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "3"]


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step, score in ((1, 5.0), (2, 3.0), (3, 4.0), (4, None), (5, 9.0)):
        write(tmp_path, step, **({"score": score} if score else {}))
        checkpoints.prune(tmp_path, 2, "score", newest=step)
    assert checkpoints.steps(tmp_path) == [2, 4, 5]


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path):
    for step in (30, 50, 55, 60):
        write(tmp_path, step)
    for step in (50, 55, 60):
        flip_a_byte(tmp_path / str(step))
    for step in (35, 40, 45):
        write(tmp_path, step)
        checkpoints.prune(tmp_path, 3, "score", newest=step)
    assert checkpoints.steps(tmp_path) == [35, 40, 45, 50, 55, 60]
    assert checkpoints.load_newest(tmp_path).step == 45


def test_unreadable_checkpoints_with_valid_checksums_do_not_push_out_good_ones(tmp_path):
    """As of another version of Orbax."""
    for step in (30, 50, 55):
        write(tmp_path, step)
    for step in (50, 55):
        folder = tmp_path / str(step)
        for path in (folder / "arrays").rglob("*"):
            if path.is_file():
                path.write_bytes(b"of another version")
        edit_meta(folder, lambda meta, folder=folder: meta.update(sha256=checkpoints._sums(folder)))
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.load(tmp_path / "55")
    for step in (35, 40):
        write(tmp_path, step)
        checkpoints.prune(tmp_path, 1, "score", newest=step)
    assert checkpoints.steps(tmp_path) == [40, 50, 55]
    assert checkpoints.load_newest(tmp_path).step == 40


def test_a_folder_of_damaged_checkpoints_is_not_an_empty_one(tmp_path):
    write(tmp_path, 1)
    flip_a_byte(tmp_path / "1")
    with pytest.raises(CheckpointError, match="no intact checkpoint, only 1 damaged"):
        checkpoints.load_newest(tmp_path)


def test_unrelated_files_are_ignored(tmp_path):
    write(tmp_path, 1)
    for folder in ("1", "1/arrays", "1/arrays/d", "."):
        (tmp_path / folder / ".DS_Store").write_text("?")
    (tmp_path / "notes").mkdir()
    assert checkpoints.load_newest(tmp_path).step == 1


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    write(tmp_path, 1)
    arrays = checkpoints.load_newest(tmp_path).arrays
    wider = {**TREE, "params": {"kernel": np.zeros((2, 4), np.float32)}}
    with pytest.raises(CheckpointError, match=r"params.kernel: \(2, 3\) float32, not \(2, 4\)"):
        checkpoints.unflatten(arrays, wider)
    with pytest.raises(CheckpointError, match=r"params\.bias"):
        checkpoints.unflatten(arrays, {**TREE, "params": {"bias": np.zeros(1)}})


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_an_array_of_another_type_is_refused(dtype):
    arrays = checkpoints.flatten(TREE)
    arrays["params.kernel"] = arrays["params.kernel"].astype(dtype)  # the same shape and numbers
    message = rf"params\.kernel: \(2, 3\) {np.dtype(dtype)}, not \(2, 3\) float32"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.unflatten(arrays, TREE)


def test_meta_is_human_readable(tmp_path):
    write(tmp_path, 1, note="hello")
    assert json.loads((tmp_path / "1" / "meta.json").read_text())["note"] == "hello"
