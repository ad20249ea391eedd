"""evaluate, table and figures on a run's folder, and README's own code."""

import json
import pathlib
import re
import shutil

import handmade
import numpy as np
import PIL.Image
import pytest
import safetensors.numpy
import scipy.ndimage
from conftest import ROOT, SMALL

import datasets
import lavae_jax
from configs import images as config_of_images
from lavae_jax import model_files
from lavae_jax.checkpoints import CheckpointError
from lavae_jax.commands import export


@pytest.fixture(scope="module")
def run(tmp_path_factory, mnist_builder, data_dir):
    return handmade.write_run(tmp_path_factory.mktemp("runs") / "mnist1k-cpu", data_dir)


def test_evaluation_gives_the_same_numbers_on_any_number_of_devices_and_processes(
    launch, start_two, run, tmp_path
):
    def arguments(name):
        flags = [f"--checkpoint={run}", "--split=test,test_7", "--num_samples=5"]
        odd = "--num_images=13"  # which two processes cannot halve
        return ["evaluate.py", *flags, odd, f"--output={tmp_path / name}"]

    one = launch(*arguments("one.json"))
    assert one.returncode == 0, one.stderr
    assert "entropy of the data 22.57" in one.stdout
    warnings = [line for line in one.stderr.splitlines() if "Warning" in line]
    # The handmade model detects single pixels, which digits are not.
    assert all("out of reach of every detected object" in line for line in warnings)
    first, second = start_two(*arguments("two.json"), JAX_NUM_CPU_DEVICES="2")
    for process in (first, second):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        # Results, progress and warnings come from process 0.
        assert ("images" in stdout) == (process is first)
        assert ("-log p(x)" in stderr) == ("images" in stderr) == (process is first)

    ours, theirs = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert ours["splits"].keys() == theirs["splits"].keys() == {"test", "test_7"}
    for split, scores in theirs["splits"].items():
        assert scores["images"] == 13
        assert scores["disentanglement"].keys() == {"scenes", "move", "appearance"}
        assert_same_numbers(scores, ours["splits"][split])

    (tmp_path / "two.json").write_text(json.dumps({**theirs, "seed": 1}))
    table = launch("table.py", str(tmp_path / "one.json"), str(tmp_path / "two.json"))
    assert table.returncode == 0, table.stderr
    paper, row = (line for line in table.stdout.splitlines() if "1k" in line and "LAVAE" in line)
    assert "42.2 ± 1.1" in paper
    assert "[1]" in row  # 13 scenes and 5 samples are not comparable with the paper's
    assert f"{ours['splits']['test']['neg_bound']:.1f} ± 0.0" in row


def assert_same_numbers(one, other):
    """Up to rounding; the speed is not among them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"images_per_second"}:
            assert_same_numbers(one[name], other[name])
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    else:
        assert one == other


def test_table_explains_a_file_that_is_no_result(launch, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    result = launch("table.py", str(tmp_path / "x.json"))
    assert result.returncode == 1
    assert "is not a result of launch/evaluate.py" in result.stderr


def test_overlapping_scenes_are_evaluated(launch, run, tmp_path, data_dir):
    """By a model, with a picture of its calibration, and by a classical method."""
    sizes = "num_train=20,num_test=30,num_crowd=10"
    flags = [f"--set=apart=8,{sizes}", "--split=test_7", f"--data_dir={data_dir}"]
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    model = ["--num_samples=2", "--calibration", f"--output={ours}"]
    result = launch("evaluate.py", f"--checkpoint={run}", *flags, *model)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "ours_calibration.png").read_bytes().startswith(b"\x89PNG")
    method = ["--checkpoint=watershed", "--dataset=multi_mnist/1k", f"--output={theirs}"]
    result = launch("evaluate.py", *flags, *method)
    assert result.returncode == 0, result.stderr
    ours, theirs = (json.loads(path.read_text()) for path in (ours, theirs))
    assert ours["overrides"] == theirs["overrides"] == f"apart=8,{sizes}"
    assert ours["dataset"] == theirs["dataset"] == "multi_mnist/1k"
    scores = ours["splits"]["test_7"]
    assert scores["images"] == theirs["splits"]["test_7"]["images"] == 10
    assert scores["entropy"] is None
    assert sum(scores["calibration"]["objects"]) > 0
    shared = {"count_accuracy", "recall", "precision", "mostly_hidden", "foreground_ari"}
    assert shared <= scores.keys() & theirs["splits"]["test_7"].keys()
    assert theirs["kind"] == "classical"


MISTAKES = [
    (["evaluate.py", "--checkpoint=watershed"], "--checkpoint=watershed needs a --dataset"),
    (
        ["evaluate.py", "--checkpoint=watershed", "--dataset=multi_mnist/1k", "--calibration"],
        "--support and --calibration apply only to LAVAE",
    ),
    (["evaluate.py", "--checkpoint=nowhere"], "neither a folder nor shipped weights"),
    (
        ["evaluate.py", "--checkpoint={run}", "--split=validation"],
        "--split=validation: expected one of train, test",
    ),
    (
        ["evaluate.py", "--checkpoint=mnist1k", "--data_dir={tmp}/data", "--split=tset"],
        "--split=tset: expected one of train, test, test_7",
    ),
    (["evaluate.py", "--checkpoint={run}", "--output={tmp}"], "is a folder; name a file"),
    (["evaluate.py", "--checkpoint={run}", "--output={tmp}/no/such/x.json"], "is not a folder"),
    (
        ["evaluate.py", "--checkpoint=baseline_mnist1k", "--support=peaks"],
        "--support applies only to LAVAE",
    ),
    (["evaluate.py", "--checkpoint={run}", "--num_processes=2"], "--process_id missing"),
    (["show_data.py", "--split=test_8"], "--split=test_8: expected one of train, test, test_7"),
    (["figures.py", "--checkpoint=mnist1k", "--output={tmp}/file"], "is not a folder"),
    (["figures.py", "--checkpoint=mnist1k", "--figure=swop"], "expected one of reconstruction"),
    (
        ["figures.py", "--checkpoint=dsprites", "--beside=baseline_mnist1k"],
        "was trained on multi_mnist/1k, --checkpoint on multi_dsprites",
    ),
    (["demo.py", "--count=100"], "a scene has room for at most 16 objects"),
    (["export.py", "--run={tmp}/file", "--output={tmp}/x"], "config.json"),
    (["export.py", "--run={tmp}/file"], "give --run and --output, or --card alone"),
    (["export.py", "--card={tmp}/nowhere"], "config.json"),
    (["table.py"], "files"),
    (["infer.py", "--checkpoint=mnist1k", "--images=nowhere"], "neither a folder nor a file"),
    (
        ["infer.py", "--checkpoint=mnist1k", "--images=.", "--output=x.txt"],
        "--output=x.txt: the ending must be one of .csv, .jsonl, .json",
    ),
    (
        ["infer.py", "--checkpoint=baseline_mnist1k", "--images=."],
        "a baseline, which has no objects",
    ),
    (["infer.py", "--checkpoint=mnist1k", "--images=."], "nor its subfolders contain images (.png"),
    (["show_data.py", "--dataset=images"], "no path to images"),
    (["generalise.py", "--checkpoint=baseline_mnist1k"], "a baseline, which has no objects"),
    (["evaluate.py", "--checkpoint={own}"], "`lavae infer` applies it to other images"),
    (
        ["evaluate.py", "--checkpoint=mnist1k", "--dataset=multi_dsprites"],
        "scenes of multi_dsprites have 3 channels, and the model mnist1k has 1",
    ),
    (["demo.py", "--output=d.xyz"], "--output=d.xyz: the ending must be one of .png, .pdf"),
    (["infer.py", "--checkpoint=mnist1k", "--images=.", "--min_score=nan"], "from 0 to 1"),
    (["infer.py", "--checkpoint=mnist1k", "--images=.", "--threshold=nan"], "threshold=nan must"),
    (["playground.py", "--host=no.such.example"], "expected an address of this machine"),
    (["playground.py", "--checkpoint={own_grey}", "--port=0"], "sees grey levels of images"),
    (["demo.py", "--checkpoint={own_grey}"], "sees grey levels of images that it zooms"),
]


def test_mistakes_are_explained_before_the_work(launch_all, run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"  # a model of the user's images
    shutil.copytree(run, own)
    config = json.loads((own / "config.json").read_text())
    config["dataset"] = {"name": "images", "path": "somewhere", "data_dir": ""}
    (own / "config.json").write_text(json.dumps(config))
    own_grey = tmp_path / "own_grey"
    shutil.copytree(own, own_grey)
    config["dataset"].update(levels="grey", diameter=12.0)
    (own_grey / "config.json").write_text(json.dumps(config))
    names = {"run": run, "tmp": tmp_path, "own": own, "own_grey": own_grey}
    cases = [[word.format(**names) for word in arguments] for arguments, _ in MISTAKES]
    results = launch_all(*cases, TFDS_DATA_DIR=str(tmp_path / "data"))
    for (arguments, message), result in zip(MISTAKES, results, strict=True):
        assert message in result.stderr, (arguments, result)
        assert result.returncode == 1, arguments
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "data").exists()  # no data set was built before a mistake was seen


def test_a_damaged_data_set_is_named(launch, run, data_dir, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(data_dir, copy)
    for path in copy.rglob("*test.array_record*"):
        path.write_bytes(path.read_bytes()[:-1_000])
    output = f"--output={tmp_path / 'x.json'}"
    flags = [f"--checkpoint={run}", f"--data_dir={copy}", "--split=test", output]
    result = launch("evaluate.py", *flags)
    assert result.returncode == 1
    assert f"the data set in {copy}" in result.stderr
    assert "Delete that folder" in result.stderr
    assert "Traceback" not in result.stderr


def test_every_figure_is_written_with_the_size_promised(launch, run, tmp_path):
    result = launch(
        "figures.py",
        f"--checkpoint={run}",
        f"--output={tmp_path}",
        "--rows=3",
        "--steps=4",
        "--inches=0.5",
    )
    assert result.returncode == 0, result.stderr
    names = {pathlib.Path(line).stem for line in result.stdout.split()}
    assert len(names) == 12
    for name in names:
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    columns = {
        "prior_samples": 6,
        "location_traversal": 5,
        "appearance_traversal_crowd": 5,
        "swap": 3,
    }
    for name, count in columns.items():
        with PIL.Image.open(tmp_path / f"{name}.png") as image:
            assert image.width == count * 0.5 * 200


def test_a_figure_can_be_chosen(launch, run, tmp_path):
    flags = ["--figure=training_curves", "--inches=0.3"]
    result = launch("figures.py", f"--checkpoint={run}", f"--output={tmp_path}", *flags)
    assert result.returncode == 0, result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"training_curves.png", "training_curves.pdf"}


def test_curves_generalise_and_show_data_write_pictures(launch_all, run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for k in range(3):
        picture = handmade.picture((5 + k, 5, False), (20, 30, True), canvas=(70, 80))[..., 0]
        thick = scipy.ndimage.maximum_filter(picture, 5)
        PIL.Image.fromarray((255 * thick).astype(np.uint8)).save(own / f"{k}.png")
    curves, general, grid = (tmp_path / f"{name}.png" for name in ("curves", "general", "grid"))
    small = ["--count=0,1,2", "--canvas=64,80", "--scenes=4"]
    results = launch_all(
        ["curves.py", str(run), f"--output={curves}", "--metric=neg_elbo"],
        ["curves.py", str(run), "--metric=lose"],
        ["generalise.py", f"--checkpoint={run}", *small, f"--output={general}"],
        ["show_data.py", "--dataset=images", f"--path={own}", f"--output={grid}"],
    )
    assert [result.returncode for result in results] == [0, 1, 0, 0], results
    assert "--metric=lose: expected one of" in results[1].stderr
    for picture in (curves, general, grid):
        with PIL.Image.open(picture) as image:
            assert image.width > 300
    points = json.loads(general.with_suffix(".json").read_text())["results"]
    assert {(p["kind"], p["canvas"], p["count"]) for p in points} == {
        (kind, canvas, count)
        for kind in ("seen", "unseen")
        for canvas in (64, 80)
        for count in (0, 1, 2)
    }
    assert "--config.model.sprite_size=9" in results[3].stdout
    assert "the run will take about 0:" in results[3].stdout


def test_the_code_in_the_documents_runs(mnist_builder, monkeypatch, data_dir):
    """As printed, with a small data set in place of the whole one."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = {
        document.name: re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
        for document in documents
    }
    assert blocks["README.md"]
    assert blocks["training.md"]
    make_builder = datasets.make_builder
    monkeypatch.setattr(
        datasets, "make_builder", lambda name: make_builder(name, data_dir=data_dir, **SMALL)
    )
    for name, of_document in blocks.items():
        for block in of_document:
            exec(compile(block, name, "exec"), {})


def test_an_exported_model_is_small_and_does_the_same(launch, run, data_dir, tmp_path):
    output = tmp_path / "mine"
    flags = [f"--run={run}", f"--output={output}"]
    result = launch("export.py", *flags)
    assert result.returncode == 0, result.stderr
    provenance = json.loads((output / "provenance.json").read_text())
    assert provenance["command"].startswith("python launch/train.py --config=configs/mnist1k.py")
    assert "--config.model.sprite_size=5" in provenance["command"]
    assert provenance["seconds"] == 1.5
    assert f"`{provenance['command']}`" in (output / "README.md").read_text()
    assert not any(data_dir in p.read_text() for p in output.glob("*.json*"))

    theirs, ours = lavae_jax.load(run), lavae_jax.load(output)
    images = handmade.picture((4, 5, True), (12, 9, False))[None]
    scene = theirs.infer(images)
    np.testing.assert_array_equal(ours.infer(images).location, scene.location)
    np.testing.assert_allclose(ours.render(scene), theirs.render(scene), atol=1e-3)
    stored = safetensors.numpy.load_file(output / "model.safetensors")
    assert {name.split(".")[1] for name in stored} == {
        "location",
        "appearance",
        "decoder",
        "count_logits",
    }
    assert all(array.dtype == np.float16 for array in stored.values())
    assert sorted(p.name for p in output.iterdir()) == [
        "README.md",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "provenance.json",
    ]

    again = launch("export.py", *flags)
    assert again.returncode == 1
    assert f"{output} exists" in again.stderr
    weights = output / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2] + b"??")
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        lavae_jax.load(output)
    (output / "provenance.json").unlink()
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=r"safetensors cannot be read"):
        lavae_jax.load(output)


def test_neither_the_files_nor_the_command_of_a_model_name_the_folder_of_its_images(tmp_path):
    run, output = handmade.write_run(tmp_path / "run", ""), tmp_path / "mine"
    config = config_of_images.get_config("cpu")
    config.dataset.update(path=str(tmp_path / "private"), member="x")
    flags = "--config.dataset.member=x --config.dataset.path=IMAGES"
    assert export.command(config).endswith(f"configs/images.py:cpu {flags}")
    config.dataset.path = "tfds:mine/grey"  # is no folder
    assert "--config.dataset.path=tfds:mine/grey" in export.command(config)
    content = json.loads((run / "config.json").read_text())
    content["dataset"] = {"path": str(tmp_path / "private")}
    (run / "config.json").write_text(json.dumps(content))
    model_files.export(run, output, "a command")
    assert not any("private" in path.read_text() for path in output.glob("*.json*"))


def test_the_demo_draws_its_own_scenes(launch, run, tmp_path):
    picture = tmp_path / "demo.png"
    result = launch("demo.py", f"--checkpoint={run}", f"--output={picture}", "--scenes=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("(true: 3)") == 2
    with PIL.Image.open(picture) as image:
        assert image.width > 1000


def test_the_demo_of_the_larger_pool_uses_the_available_digits(launch, tmp_path):
    picture = tmp_path / "demo.png"
    result = launch("demo.py", "--checkpoint=mnist10k", f"--output={picture}", "--scenes=2")
    assert result.returncode == 0, result.stderr
    assert "are not available; these are scenes of multi_mnist/10k-pool1000" in result.stdout
    assert result.stdout.count("3 objects (true: 3)") == 2
    assert picture.exists()
