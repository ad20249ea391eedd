"""Code that the examples share. Import it first: it makes the project's packages importable."""

import json
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from absl import app, flags, logging

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lavae_jax import evaluation

MAKE = flags.DEFINE_string("make", None, "Make the images, and write them to this folder.")
SCORE = flags.DEFINE_string("score", None, "The .jsonl file that launch/infer.py wrote.")
TRUTH = flags.DEFINE_string("truth", None, "truth.json, which --make writes next to the images.")


def run(
    make: Callable[[pathlib.Path], None],
    near: float,
    is_wanted: Callable[[dict], bool] = lambda thing: True,
) -> None:
    """Makes images, or scores the objects that were found in them, depending on the flags.

    Args:
        make: writes images and their truth to a folder.
        near: the largest distance, in pixels, at which a detection matches a true centre.
        is_wanted: decides whether a found object is scored; by default, all are.
    """

    def main(_):
        logging.set_verbosity(logging.WARNING)
        if not MAKE.value and not SCORE.value:
            raise app.UsageError("give --make or --score")
        if SCORE.value and not TRUTH.value:
            raise app.UsageError("--score needs --truth")
        if MAKE.value:
            make(pathlib.Path(MAKE.value))
        if SCORE.value:
            print(score(SCORE.value, TRUTH.value, near, is_wanted))

    for flag in flags.FLAGS.get_key_flags_for_module(sys.modules[__name__]):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # so that --help shows it
    app.run(main)


def score(found: str, truth: str, near: float, is_wanted: Callable[[dict], bool]) -> str:
    """Compares found objects with the true centres in each image.

    Args:
        found: the path of the .jsonl file that launch/infer.py wrote.
        truth: the path of the truth.json that --make wrote.
        near: the largest distance, in pixels, at which a detection matches a true centre.
        is_wanted: decides whether a found object is scored.

    Returns:
        One line with the accuracy of counts, recall and precision.
    """
    centres = json.loads(pathlib.Path(truth).read_text())
    matched = total = claimed = right = 0
    for line in pathlib.Path(found).read_text().splitlines():
        record = json.loads(line)
        true = np.array(centres[record["image"]]).reshape(-1, 2)
        wanted = filter(is_wanted, record["objects"])
        seen = np.array([[thing["row"], thing["column"]] for thing in wanted]).reshape(-1, 2)
        matched += len(evaluation.match_within(seen, true, near)[0])
        total, claimed = total + len(true), claimed + len(seen)
        right += len(true) == len(seen)
    return (
        f"{len(centres)} images with {total:,} objects: the count is right in "
        f"{right / len(centres):.2%} of the images; recall {matched / max(total, 1):.2%}, "
        f"precision {matched / max(claimed, 1):.2%} within {near:g} pixels"
    )
