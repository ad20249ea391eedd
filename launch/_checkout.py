"""Starts the programs of a checkout, which import this module before all others."""

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def prepare() -> None:
    """Makes the project's packages importable from any folder, and prepares the process."""
    sys.path.insert(0, str(ROOT))
    from lavae_jax.commands import startup

    startup.prepare()


def run(command: str) -> None:
    """Runs a command of `lavae`.

    Args:
        command: its name, such as train.
    """
    prepare()
    importlib.import_module(f"lavae_jax.commands.{command}").run()
