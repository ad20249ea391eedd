"""LAVAE, the Location-Appearance Variational AutoEncoder, in JAX and Flax.

    model = lavae_jax.load("mnist1k")
    scene = model.infer(images)

The exported names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lavae_jax.analysis import analyse
    from lavae_jax.api import Baseline, Model
    from lavae_jax.model_files import load
    from lavae_jax.preprocessing import Preprocessing
    from lavae_jax.scene import Scene

__all__ = ["Baseline", "Model", "Preprocessing", "Scene", "analyse", "load"]

_MODULES = {
    "Baseline": "api",
    "Model": "api",
    "Preprocessing": "preprocessing",
    "Scene": "scene",
    "analyse": "analysis",
    "load": "model_files",
}


if not TYPE_CHECKING:  # for a type checker, a module with __getattr__ has every attribute

    def __getattr__(name: str):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
