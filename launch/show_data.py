"""The command `lavae show`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import show

if __name__ == "__main__":
    show.run()
