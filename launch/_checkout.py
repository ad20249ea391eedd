"""Imported first: finds the project's packages from any folder, and prepares the process."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lavae_jax.commands import program as program
