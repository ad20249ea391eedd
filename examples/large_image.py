"""Finds hundreds of digits in one large image, with weights trained on 64x64 images of 0-3 digits.

    python examples/large_image.py --make=large/
    python launch/infer.py --checkpoint=mnist1k --images=large/ --output=large.jsonl
    python examples/large_image.py --score=large.jsonl --truth=large/truth.json

With --unseen, the digits are held out from the training of all models.
"""

import json
import pathlib

import _shared
import numpy as np
from absl import app, flags
from PIL import Image

import datasets

SIDE = flags.DEFINE_integer("side", 2048, "Side of the image, in pixels; a multiple of 512.")
UNSEEN = flags.DEFINE_bool("unseen", False, "Draw held-out digits, which no model was trained on.")

PART, EACH = 512, 32  # the image is a grid of scenes: their side in pixels, and digits in each
NEAR = 2.0  # pixels: the largest distance at which a detection matches a true centre


def make(folder: pathlib.Path) -> None:
    """Writes the image and the true centres.

    Args:
        folder: the folder to write to.
    """
    if SIDE.value % PART or SIDE.value < PART:
        raise app.UsageError(f"--side={SIDE.value} must be a multiple of {PART}")
    name = "multi_mnist/1k_unseen" if UNSEEN.value else "multi_mnist/1k"
    builder = datasets.make_builder(name, canvas=PART, max_count=EACH)
    parts = SIDE.value // PART
    drawn = builder.draw(parts**2, 0, (EACH, EACH))
    grid = drawn.image[..., 0].reshape(parts, parts, PART, PART)
    image = grid.transpose(0, 2, 1, 3).reshape(SIDE.value, SIDE.value)
    centres = [
        (np.argwhere(mask == k).mean(0) + PART * np.array(divmod(part, parts))).tolist()
        for part, mask in enumerate(drawn.mask)
        for k in range(1, EACH + 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / "digits.png")
    (folder / "truth.json").write_text(json.dumps({"digits.png": centres}) + "\n")
    print(f"{folder / 'digits.png'}: {image.shape[0]}x{image.shape[1]}, {len(centres)} digits")


if __name__ == "__main__":
    _shared.run(make, NEAR)
