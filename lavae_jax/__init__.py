"""LAVAE, the Location-Appearance Variational AutoEncoder, in JAX and Flax."""

from lavae_jax.api import Baseline, Model
from lavae_jax.model_files import load
from lavae_jax.scene import Scene

__all__ = ["Baseline", "Model", "Scene", "load"]
