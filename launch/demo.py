"""The command `lavae demo`, from a checkout."""

import _checkout  # noqa: F401

from lavae_jax.commands import demo

if __name__ == "__main__":
    demo.run()
