"""The package as `pip install` gives it: whole, and without the checkout."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from PIL import Image

USE = """
import sys
import numpy as np
import lavae_jax

model = lavae_jax.load("mnist1k")
scene = model.sample(key=1, num_scenes=4, count=[2])
images = np.asarray(model.render(scene))
assert images.shape == (4, 64, 64, 1)
print(model.infer(images.round()))
assert len(lavae_jax.analyse(model, images.round())) == 4
others = {"datasets", "configs", "pytest", "tensorflow", "torch", "grain", "matplotlib", "skimage"}
assert not others & set(sys.modules)
"""
SHORT_RUN = [
    "--config.curriculum.auxiliary.steps=1",
    "--config.curriculum.peaks.steps=1",
    "--config.curriculum.appearance.steps=1",
    "--config.batch_size=2",
]


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, **kwargs)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lavae_jax", source / "lavae_jax", ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    result = run(*build, "-w", str(source / "dist"), str(source))
    assert result.returncode == 0, result.stderr
    return next((source / "dist").glob("*.whl"))


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "lavae_jax").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted


def closure(names):
    """What is installed here of the packages named, and of their dependencies."""
    found, waiting = {}, [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        if (wanted.name, *wanted.extras) in found:
            continue
        distribution = importlib.metadata.distribution(wanted.name)
        found[wanted.name, *wanted.extras] = distribution
        extras = [{"extra": extra} for extra in (*wanted.extras, "")]
        needed = map(Requirement, distribution.requires or ())
        waiting += [r for r in needed if not r.marker or any(map(r.marker.evaluate, extras))]
    return found.values()


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel, its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), check=True)
    site = next((folder / "lib").glob("*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    link(site)
    return folder


def link(site, extra=""):
    """Adds the dependencies of the package, or of an extra."""
    (metadata,) = importlib.metadata.distributions(path=[str(site)], name="lavae_jax")
    asked_for = map(Requirement, metadata.requires)
    wanted = [str(r) for r in asked_for if not r.marker or r.marker.evaluate({"extra": extra})]
    for distribution in closure(r.partition(";")[0] for r in wanted):
        if distribution.name == "lavae_jax":
            continue
        for top in {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))


def test_a_trained_model_can_be_used_without_what_training_needs(environment, tmp_path):
    """In a folder that holds nothing."""
    result = run(environment / "bin" / "python", "-I", "-c", USE, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Scene(4 of 64x64 pixels")
    lavae = [environment / "bin" / "python", "-I", "-m", "lavae_jax.commands.main"]
    result = run(*lavae, "demo", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "error: matplotlib is not installed: pip install 'lavae_jax[figures]'\n"


def test_the_installed_command_finds_the_data_sets_of_its_checkout(tmp_path):
    """As `pip install -e` leaves it, whose console script is in no folder of the checkout."""
    find = "from lavae_jax.commands import scene_data; print(scene_data.find().names())"
    code = f"import sys; sys.path.append({str(ROOT)!r}); {find}"
    result = run(sys.executable, "-I", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "multi_mnist/1k" in result.stdout


def test_the_commands_work_outside_of_the_checkout(environment, tmp_path):
    link(next((environment / "lib").glob("*/site-packages")), extra="train")
    lavae = [environment / "bin" / "python", "-I", "-m", "lavae_jax.commands.main"]
    demo = run(*lavae, "demo", "--scenes=2", "--checkpoint=mnist1k_mixture", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.count("3 objects (true: 3)") == 2
    assert (tmp_path / "demo.png").exists()
    (tmp_path / "own").mkdir()
    for k in range(6):
        image = np.zeros((64, 64), np.uint8)
        image[10 + k : 20 + k, 12:19] = image[40:46, 50:58] = 255
        Image.fromarray(image).save(tmp_path / "own" / f"{k}.png")
    train = run(
        *lavae,
        "train",
        "--config=images",
        "--config.dataset.path=own",
        "--config.dataset.held_out=2",
        *SHORT_RUN,
        cwd=tmp_path,
    )
    assert train.returncode == 0, train.stderr
    infer = run(*lavae, "infer", "--checkpoint=runs/images-cpu", "--images=own", cwd=tmp_path)
    assert infer.returncode == 0, infer.stderr
    assert (tmp_path / "objects.csv").exists()
    scenes = run(*lavae, "train", "--config=mnist1k:tiny", cwd=tmp_path)
    assert scenes.returncode == 1
    assert "run the command in a checkout" in scenes.stderr
