"""How the programs of a checkout start: their first import, and its function their first call."""

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def prepare() -> None:
    """Finds the project's packages from any folder, and prepares the process."""
    sys.path.insert(0, str(ROOT))
    from lavae_jax.commands import startup

    startup.prepare()


def run(command: str) -> None:
    """Runs the command `lavae COMMAND`."""
    prepare()
    importlib.import_module(f"lavae_jax.commands.{command}").run()
