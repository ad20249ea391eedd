"""The scene data sets, which are part of a checkout and not of the installed package."""

import importlib
from typing import TYPE_CHECKING

from absl import app

from lavae_jax.errors import UserError

if TYPE_CHECKING:
    import datasets


def load() -> "datasets":
    """The package `datasets` of the checkout that the program is run from."""
    found = find()
    if found is None:
        raise UserError(
            "the scene data sets (multi_mnist, multi_dsprites) are not part of the installed "
            "package; run this command from a checkout. Custom images work here: "
            "lavae train --config=images --config.dataset.path=FOLDER"
        )
    return found


def find() -> "datasets | None":
    """The same; None if there is none. Another package is called `datasets`, too."""
    try:
        found = importlib.import_module("datasets")
    except ImportError:
        return None
    return found if hasattr(found, "make_builder") else None


def names() -> str:
    """The data sets, for the help of a flag."""
    found = find()
    return ", ".join(found.names()) if found else "those of a checkout"


def check_splits(builder: "datasets.SceneBuilder", names: list[str]) -> None:
    """Refuses unknown splits before the data set is built, which may take minutes."""
    for name in names:
        if name not in builder.split_counts:
            expected = ", ".join(builder.split_counts)
            raise app.UsageError(f"--split={name}: expected one of {expected}")
