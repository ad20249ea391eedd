"""The package as `pip install` gives it: whole, and without the checkout."""

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

USE = """
import sys
import numpy as np
import lavae_jax
import lavae_jax.evaluation, lavae_jax.gallery, lavae_jax.table, lavae_jax.training.loop

assert not {"datasets", "configs", "pytest", "tensorflow", "torch"} & set(sys.modules)
model = lavae_jax.load("mnist1k")
scene = model.sample(key=1, num_scenes=4, count=[2])
images = np.asarray(model.render(scene))
assert images.shape == (4, 64, 64, 1)
print(model.infer(images.round()))
"""


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
    """What is installed here of the packages named, and of those that they ask for."""
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


def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """With what it asks for and nothing else, in a folder that holds nothing."""
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty"), check=True)
    site = next((tmp_path / "empty" / "lib").glob("*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (metadata,) = importlib.metadata.distributions(path=[str(site)])
    asked_for = [r for r in metadata.requires if "extra ==" not in r]
    for distribution in closure(asked_for):
        for top in {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(distribution.locate_file(top))
    (tmp_path / "folder").mkdir()
    python = tmp_path / "empty" / "bin" / "python"
    result = run(python, "-I", "-c", USE, cwd=tmp_path / "folder")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Scene(4 of 64x64 pixels")
