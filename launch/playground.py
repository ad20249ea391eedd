"""The command `lavae playground`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import playground

if __name__ == "__main__":
    playground.run()
