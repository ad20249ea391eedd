"""Sets flags for XLA, which reads them when it starts: before jax is imported.

A flag is set unless the user has set it, and only if the installed version of the library is known
to have it: an unknown flag would end the process. With LAVAE_XLA_FLAGS=0, none is set.
"""

import importlib.metadata
import os
from typing import NamedTuple

INITIAL_ENVIRONMENT = dict(os.environ)  # before anything is set


class Flag(NamedTuple):
    """A flag of XLA.

    Attributes:
        variable: the environment variable that contains it.
        text: its name and value.
        package: the package that reads it.
    """

    variable: str
    text: str
    package: str

    @property
    def name(self) -> str:
        """The part before "="."""
        return self.text.partition("=")[0]


# YNNPACK, which XLA uses on CPUs by default, makes convolutions and their gradients 1.6 to
# 2.1 times as slow as XLA's own (docs/platforms.md).
CPU = Flag("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=", "jaxlib")
# The TPU compiler tries tilings of each convolution until one is this close to the ideal. Its
# default of 1 takes four to five times as long, for steps that are 7 % faster by its own estimate
# (docs/platforms.md).
TPU = Flag("LIBTPU_INIT_ARGS", "--xla_jf_convolution_performance_target=0.92", "libtpu")

# The versions that our flags were measured with; others run without them.
KNOWN_VERSIONS = {"jaxlib": ("0.10",), "libtpu": ("0.0.42",)}


def set_flags() -> None:
    """Sets all flags, unless LAVAE_XLA_FLAGS=0."""
    if os.environ.get("LAVAE_XLA_FLAGS") != "0":
        add(CPU)
        add(TPU)


def add(flag: Flag) -> None:
    """Sets a flag, unless the user has set it or the installed version may not have it.

    Args:
        flag: the flag.
    """
    given = os.environ.get(flag.variable, "")
    if flag.name not in given and is_known(flag.package):
        os.environ[flag.variable] = f"{given} {flag.text}".strip()


def is_known(package: str) -> bool:
    """Checks whether our flags were tried with the installed version of a package.

    Args:
        package: a key of `KNOWN_VERSIONS`.

    Returns:
        True if they were; False if not, or if the package is not installed.
    """
    try:
        installed = importlib.metadata.version(package).split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    known = [version.split(".") for version in KNOWN_VERSIONS[package]]
    return any(installed[: len(version)] == version for version in known)
