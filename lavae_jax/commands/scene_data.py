"""The scene data sets, which are part of a checkout and not of the installed package."""

import importlib
import pathlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from absl import app

import lavae_jax
from lavae_jax.errors import UserError

if TYPE_CHECKING:
    import datasets


def load() -> ModuleType:
    """Imports the package `datasets` of the checkout that the program is run from.

    Returns:
        The package.

    Raises:
        UserError: the program is not run from a checkout, or a dependency is missing.
    """
    found = find()
    if found is None:
        raise UserError(
            "the scene data sets (multi_mnist, multi_dsprites) are not part of the installed "
            "package; run the command in a checkout. Custom images work here: "
            "lavae train --config=images --config.dataset.path=FOLDER"
        )
    return found


def find() -> ModuleType | None:
    """Imports the package `datasets` if the program is run from a checkout.

    Returns:
        The package; None outside of a checkout.

    Raises:
        UserError: a dependency is missing.
    """
    root = pathlib.Path(lavae_jax.__file__).resolve().parents[1]
    if not (root / "datasets" / "scenes.py").exists():
        return None
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # first, since there is another package called `datasets`
    try:
        return importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: pip install -e '.[all]' installs what the scene data "
            "sets need"
        ) from error


def names() -> str:
    """Lists the data sets for the help of a flag.

    Returns:
        Their names, separated by commas.
    """
    try:
        found = find()
    except UserError:
        found = None
    return ", ".join(found.names()) if found else "a data set of a checkout"


def check_splits(builder: "datasets.SceneBuilder", names: list[str]) -> None:
    """Refuses unknown splits before the data set is built, which may take minutes.

    Args:
        builder: the builder of the data set.
        names: names of splits.

    Raises:
        UsageError: a split is unknown.
    """
    for name in names:
        if name not in builder.split_counts:
            expected = ", ".join(builder.split_counts)
            raise app.UsageError(f"--split={name}: expected one of {expected}")
