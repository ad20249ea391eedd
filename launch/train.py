"""The command `lavae train`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import train

if __name__ == "__main__":
    train.run()
