"""Hundreds of digits in one large image, found by weights that saw 64x64 pixels and 3 digits.

    python examples/large_image.py --make=large/
    python launch/infer.py --checkpoint=mnist1k --images=large/ --output=large.jsonl
    python examples/large_image.py --score=large.jsonl --truth=large/truth.json

With --unseen, digits that the weights have never seen.
"""

import json
import pathlib

import _shared
import numpy as np
from absl import app, flags
from PIL import Image

import datasets

SIDE = flags.DEFINE_integer("side", 2048, "Of the image, in pixels; a multiple of 512.")
UNSEEN = flags.DEFINE_bool("unseen", False, "Digits that no model has seen.")

PART, EACH = 512, 32  # the image is made of scenes of so many pixels, with so many digits each
NEAR = 2.0  # pixels within which a location is right


def make(folder: pathlib.Path) -> None:
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
