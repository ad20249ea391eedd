"""Prints Table 1 of the paper together with our results.

    python launch/table.py results.json
    python launch/table.py --format=markdown lavae_jax/weights/*/results*.json

The arguments are files that launch/evaluate.py wrote. Runs of the same model on the same data set
by the same recipe with different seeds make one row: mean ± standard deviation over seeds. Results
that were not measured as in the paper have separate rows and a note.
"""

import _checkout

_checkout.prepare()

from absl import flags

from lavae_jax import table
from lavae_jax.commands import program

FORMAT = flags.DEFINE_enum("format", "text", list(table.FORMATS), "The format of the table.")


def main(files: list[str]) -> None:
    """Prints the table.

    Args:
        files: paths of results.
    """
    print(table.format_files(files, FORMAT.value))


if __name__ == "__main__":
    program.run(main, positional=True)
