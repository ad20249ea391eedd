"""Lets `python launch/<program>.py` find the project's packages from any folder."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
