"""The package as `pip install` gives it: whole, and without the checkout."""

import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

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


def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """With what it asks for itself, and in a folder that holds nothing."""
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty"), check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    installed = run(*install, str(wheel))
    if installed.returncode and "No matching distribution" in installed.stderr:
        pytest.skip("the package index cannot be reached")
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "folder").mkdir()
    result = run(python, "-I", "-c", USE, cwd=tmp_path / "folder")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Scene(4 of 64x64 pixels")
