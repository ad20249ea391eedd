"""The command `lavae evaluate`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import evaluate

if __name__ == "__main__":
    evaluate.run()
