"""What programs do before they import jax: signals, XLA's flags, a quick end."""

import importlib.metadata
import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from lavae_jax.commands import xla

PREPARED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def run(*command, **environment):
    kept = {name: value for name, value in os.environ.items() if name not in PREPARED}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**kept, **environment},
    )


def test_importing_the_programs_changes_nothing_in_the_process():
    result = run(
        "-c",
        """
import os, signal, sys
path, handler = list(sys.path), signal.getsignal(signal.SIGINT)
from lavae_jax.commands import infer, main, program, startup, train, xla
assert "jax" in sys.modules
assert signal.getsignal(signal.SIGINT) is handler
assert not {"XLA_FLAGS", "LIBTPU_INIT_ARGS"} & set(os.environ)
assert sys.path == path
""",
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "lavae_jax.commands.main", "infer"],
        [ROOT / "launch" / "infer.py"],
        [ROOT / "launch" / "table.py"],
    ],
)
def test_ctrl_c_while_jax_is_imported_ends_a_program_with_a_word(command, tmp_path):
    """A module that stands in for jax sends the signal."""
    code = "import os, signal\nprint(os.environ['XLA_FLAGS'], flush=True)\n"
    (tmp_path / "jax.py").write_text(f"{code}os.kill(os.getpid(), signal.SIGINT)\n")
    result = run(*command, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == "\ninterrupted\n"
    assert xla.CPU.text in result.stdout  # set before jax is imported


def test_objects_are_frozen_before_the_garbage_collection_at_exit():
    result = run(
        "-c",
        """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # handlers run last in, first out
from lavae_jax.commands import startup
assert gc.get_freeze_count() == 0
startup.prepare()
""",
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.10.2", True),
        ("0.10.7.dev3", True),
        ("0.11.0", False),
        ("0.100.0", False),
        ("0.9.2", False),
        ("1.0.10", False),
    ],
)
def test_flags_are_set_for_versions_that_were_tried(version, known, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    monkeypatch.setenv("XLA_FLAGS", "--given=1")
    xla.add(xla.CPU)
    assert os.environ["XLA_FLAGS"] == "--given=1" + f" {xla.CPU.text}" * known


def test_flags_are_not_set_for_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setitem(xla.KNOWN_VERSIONS, "no_such_package", ("0",))
    xla.add(xla.CPU._replace(package="no_such_package"))
    assert "XLA_FLAGS" not in os.environ


def test_the_users_own_flags_win(monkeypatch):
    given = f"{xla.CPU.name}=something"
    monkeypatch.setenv("XLA_FLAGS", given)
    xla.set_flags()
    assert os.environ["XLA_FLAGS"] == given
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("LAVAE_XLA_FLAGS", "0")
    xla.set_flags()
    assert os.environ["XLA_FLAGS"] == ""


def test_the_installed_jaxlib_is_one_of_the_versions_that_were_tried():
    """If not: measure the flag with it, and add it to the table or drop the flag."""
    assert xla.is_known("jaxlib")
