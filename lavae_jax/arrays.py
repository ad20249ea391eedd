"""The types of arrays in signatures, where `jax.Array` is too narrow."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray  # on a device, or on the host
AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)  # the same kind throughout a signature
Integers = Sequence[int] | np.ndarray | jax.Array  # [N]
