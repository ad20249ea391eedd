"""The command `lavae infer`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import infer

if __name__ == "__main__":
    infer.run()
