"""Recipes: configs of models and of their training, by name.

`get_config(recipe)` of each module returns a config. The files in configs/ of a checkout are the
same, with their commands; an installed package has `lavae train --config=NAME`.
"""

import pathlib


def names() -> list[str]:
    """The modules that have a config."""
    others = ("__init__", "common")
    return sorted(
        p.stem for p in pathlib.Path(__file__).parent.glob("*.py") if p.stem not in others
    )


def path(name: str) -> str | None:
    """The file of a config, if there is one of that name."""
    return str(pathlib.Path(__file__).with_name(f"{name}.py")) if name in names() else None
