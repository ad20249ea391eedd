"""The command `lavae export`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import export

if __name__ == "__main__":
    export.run()
