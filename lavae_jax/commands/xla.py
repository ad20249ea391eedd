"""Flags for XLA, which reads them when it starts: they are set before jax is imported.

Each is set where the user has not set it, and where the installed version of the library is known
to have it, since a flag that the library does not know ends the process. LAVAE_XLA_FLAGS=0 leaves
all alone.
"""

import importlib.metadata
import os
from typing import NamedTuple

INITIAL_ENVIRONMENT = dict(os.environ)  # before anything is set


class Flag(NamedTuple):
    """An environment variable, what it is to contain, and the package that reads it."""

    variable: str
    text: str
    package: str

    @property
    def name(self) -> str:
        return self.text.partition("=")[0]


# YNNPACK, which XLA uses on CPUs by default, makes convolutions and their gradients 1.6 to
# 2.1 times as slow as XLA's own (docs/platforms.md).
CPU = Flag("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=", "jaxlib")
# The TPU's compiler tries tilings of each convolution until one is this near to the ideal. At
# its default of 1 that takes four to five times as long, for steps that are 7 % faster by its
# own estimate (docs/platforms.md).
TPU = Flag("LIBTPU_INIT_ARGS", "--xla_jf_convolution_performance_target=0.92", "libtpu")

# The versions that were tried with our flags. Others run without them: to add one, measure it.
KNOWN_VERSIONS = {"jaxlib": ("0.10",), "libtpu": ("0.0.42",)}


def set_flags() -> None:
    if os.environ.get("LAVAE_XLA_FLAGS") != "0":
        add(CPU)
        add(TPU)


def add(flag: Flag) -> None:
    """Unless it is set, or the installed version is not known to have it."""
    given = os.environ.get(flag.variable, "")
    if flag.name not in given and is_known(flag.package):
        os.environ[flag.variable] = f"{given} {flag.text}".strip()


def is_known(package: str) -> bool:
    """Whether our flags were tried with the installed version of a package."""
    try:
        installed = importlib.metadata.version(package).split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    known = [version.split(".") for version in KNOWN_VERSIONS[package]]
    return any(installed[: len(version)] == version for version in known)
