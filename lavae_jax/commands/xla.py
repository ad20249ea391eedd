"""Flags for XLA, which reads them when it starts: so this is imported before jax.

Each is set where the user has not set it, and where the library knows it, since a flag
that it does not know ends the process. LAVAE_XLA_FLAGS=0 leaves all alone.
"""

import importlib.util
import mmap
import os
import pathlib

# YNNPACK, which XLA uses on CPUs by default, makes convolutions and their gradients 1.6 to
# 2.1 times as slow as XLA's own (docs/platforms.md).
CPU = "--xla_cpu_experimental_ynn_fusion_type="
# The TPU's compiler tries tilings of each convolution until one is this near to the ideal. At
# its default of 1 that takes four to five times as long, for steps that are 7 % faster by its
# own estimate (docs/platforms.md).
TPU = "--xla_jf_convolution_performance_target=0.92"

GIVEN = dict(os.environ)  # before anything is set


def set_flags() -> None:
    if os.environ.get("LAVAE_XLA_FLAGS") != "0":
        add("XLA_FLAGS", CPU, "jaxlib", "libjax_common.so")
        add("LIBTPU_INIT_ARGS", TPU, "libtpu", "libtpu.so")


def add(variable: str, flag: str, package: str, library: str) -> None:
    """Unless it is set, or the library does not know it."""
    name = flag.partition("=")[0]
    given = os.environ.get(variable, "")
    if name not in given and _knows(package, library, name.removeprefix("--")):
        os.environ[variable] = f"{given} {flag}".strip()


def _knows(package: str, library: str, flag: str) -> bool:
    """Whether the flag's name stands in the library."""
    found = importlib.util.find_spec(package)
    path = pathlib.Path(found.submodule_search_locations[0]) / library if found else None
    if path is None or not path.exists():
        return False
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(flag.encode()) >= 0
