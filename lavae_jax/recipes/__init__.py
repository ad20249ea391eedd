"""Recipes: configs of models and of their training, by name.

`get_config(recipe)` of each module returns a config. In a checkout, the files in configs/ are the
same configs with their commands. An installed package has `lavae train --config=NAME`.
"""

import pathlib


def names() -> list[str]:
    """Lists the configs of this package.

    Returns:
        The names of the modules that have a config.
    """
    others = ("__init__", "common")
    return sorted(
        p.stem for p in pathlib.Path(__file__).parent.glob("*.py") if p.stem not in others
    )


def path(name: str) -> str | None:
    """Finds the file of a config.

    Args:
        name: its name.

    Returns:
        The path; None if no config has that name.
    """
    return str(pathlib.Path(__file__).with_name(f"{name}.py")) if name in names() else None
