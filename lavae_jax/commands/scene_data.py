"""The scene data sets, which are part of a checkout and not of the installed package."""

import importlib
import pathlib
import sys
from typing import TYPE_CHECKING

from absl import app

import lavae_jax
from lavae_jax.errors import UserError

if TYPE_CHECKING:
    import datasets


def load() -> "datasets":
    """The package `datasets` of the checkout that the program is run from."""
    found = find()
    if found is None:
        raise UserError(
            "the scene data sets (multi_mnist, multi_dsprites) are not part of the installed "
            "package; run the command in a checkout. Custom images work here: "
            "lavae train --config=images --config.dataset.path=FOLDER"
        )
    return found


def find() -> "datasets | None":
    """The same; None if the package is not run from a checkout."""
    root = pathlib.Path(lavae_jax.__file__).resolve().parents[1]
    if not (root / "datasets" / "scenes.py").exists():
        return None
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # another package is called `datasets`, too
    try:
        return importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: pip install -e '.[all]' installs what the scene data "
            "sets need"
        ) from error


def names() -> str:
    """The data sets, for the help of a flag."""
    try:
        found = find()
    except UserError:
        found = None
    return ", ".join(found.names()) if found else "a data set of a checkout"


def check_splits(builder: "datasets.SceneBuilder", names: list[str]) -> None:
    """Refuses unknown splits before the data set is built, which may take minutes."""
    for name in names:
        if name not in builder.split_counts:
            expected = ", ".join(builder.split_counts)
            raise app.UsageError(f"--split={name}: expected one of {expected}")
