"""Finds, counts and groups the letters of a page, without labels.

    python examples/page_of_text.py --make=pages/
    python launch/train.py --config=configs/images.py:cpu --config.dataset.path=pages/train \\
        --config.dataset.invert=True --config.model.sprite_size=13 \\
        --config.model.max_objects=30 --workdir=runs/page
    python launch/infer.py --checkpoint=runs/page --images=pages/test --output=letters.jsonl \\
        --min_score=0.05 --groups=64
    python examples/page_of_text.py --score=letters.jsonl --truth=pages/test/truth.json

Letters are dark on white, evenly spaced as by a typewriter, so that they do not touch. The words
are those of the project's licence, in random order. letters_groups.png shows the alphabet that the
model discovers: letters grouped by appearance.
"""

import json
import pathlib
import random

import _shared
import numpy as np
from absl import flags
from PIL import Image, ImageDraw, ImageFont

PAGES = flags.DEFINE_list("pages", ["100", "10"], "Numbers of pages of `train` and `test`.")

SIDE = 384  # pixels of a page
PITCH = (20, 14)  # from line to line, and from letter to letter
MARGIN = 16
SIZE = 14  # of the font
NEAR = 3.0  # pixels: the largest distance at which a detection matches a true centre


def render(folder: pathlib.Path) -> None:
    """Writes pages and the true centres of their letters.

    Args:
        folder: the folder to write to.
    """
    words = [word for word in (_shared.ROOT / "LICENSE").read_text().split() if word.isalpha()]
    for part, (name, number) in enumerate(zip(("train", "test"), PAGES.value, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        truth, draw = {}, random.Random(part)
        for k in range(int(number)):
            page, letters = _page(words, draw)
            page.save(folder / name / f"{k:03}.png")
            truth[f"{k:03}.png"] = letters
        (folder / name / "truth.json").write_text(json.dumps(truth) + "\n")
        total = sum(map(len, truth.values()))
        print(f"{folder / name}: {number} pages with {total:,} letters")


def _page(words: list[str], draw: random.Random) -> tuple[Image.Image, list]:
    """A page, and the row and column of each of its letters: the mean of its dark pixels."""
    page = Image.new("L", (SIDE, SIDE), 255)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(SIZE)
    columns = (SIDE - 2 * MARGIN) // PITCH[1]
    letters = []
    for row in range(MARGIN, SIDE - MARGIN - PITCH[0], PITCH[0]):
        line = ""
        while len(line) < columns:
            line += draw.choice(words) + " "
        for k, letter in enumerate(line[:columns]):
            if letter == " ":
                continue
            column = MARGIN + PITCH[1] * k + (PITCH[1] - pen.textlength(letter, font)) // 2
            pen.text((column, row), letter, 0, font)
            cell = np.asarray(page)[row : row + PITCH[0], MARGIN + PITCH[1] * k :][:, : PITCH[1]]
            down, right = np.argwhere(cell < 128).mean(0)
            letters.append([row + down, MARGIN + PITCH[1] * k + right])
    return page, letters


if __name__ == "__main__":
    _shared.run(render, NEAR)
