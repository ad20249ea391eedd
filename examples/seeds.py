"""Counts and locates seeds on a dark cloth, photographed by a poor camera, without labels.

    python examples/seeds.py --make=seeds/
    python launch/show_data.py --dataset=images --path=seeds/train
    python launch/train.py --config=configs/images.py:cpu --config.dataset.path=seeds/train \\
        --config.model.sprite_size=17 --workdir=runs/seeds
    python launch/infer.py --checkpoint=runs/seeds --images=seeds/test --output=seeds.jsonl \\
        --overlay=overlays/ --groups=16 --report=seeds.html
    python examples/seeds.py --score=seeds.jsonl --truth=seeds/test/truth.json

Seeds are ellipses of random size (6 to 15 pixels long; see --longest), angle and brightness, at
subpixel locations, on a background that is not black, with noise. No two touch.
"""

import json
import math
import pathlib

import _shared
import numpy as np
from absl import flags
from PIL import Image

LONGEST = flags.DEFINE_float(
    "longest", 15.0, "Length of the longest seed, in pixels.", lower_bound=4.0
)
IMAGES = flags.DEFINE_list("images", ["500", "100"], "Numbers of images of `train` and `test`.")

MOST = 12  # the largest number of seeds in an image
APART = 3.0  # pixels: the smallest distance between seeds
FINE = 4  # samples per pixel in each direction
NOISE = 0.04  # standard deviation of the noise; pixels are from 0 to 1
NEAR = 2.0  # pixels: the largest distance at which a detection matches a true centre


def make(folder: pathlib.Path) -> None:
    """Writes images and the true centres of their seeds.

    Args:
        folder: the folder to write to.
    """
    for part, (name, number) in enumerate(zip(("train", "test"), IMAGES.value, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        truth, draw = {}, np.random.default_rng(part)
        for k in range(int(number)):
            image, centres = _image(draw)
            Image.fromarray(image).save(folder / name / f"{k:03}.png")
            truth[f"{k:03}.png"] = centres
        (folder / name / "truth.json").write_text(json.dumps(truth) + "\n")
        print(f"{folder / name}: {number} images, {sum(map(len, truth.values())):,} seeds")


def _image(draw: np.random.Generator) -> tuple[np.ndarray, list]:
    """An image, and the row and column of each seed."""
    longest = LONGEST.value
    side = max(96, round(6 * longest))
    rows, columns = np.mgrid[: side * FINE, : side * FINE] / FINE + (0.5 / FINE - 0.5)
    light = np.full(rows.shape, draw.uniform(0.05, 0.2))
    centres, radii = [], []
    for _ in range(draw.integers(0, MOST + 1)):
        long = draw.uniform(0.4, 1.0) * longest / 2
        wide, angle = long * draw.uniform(0.5, 0.8), draw.uniform(0, math.pi)
        centre = draw.uniform(longest / 2, side - 1 - longest / 2, 2)
        if any(
            math.dist(centre, c) < long + r + APART for c, r in zip(centres, radii, strict=True)
        ):
            continue
        centres.append(centre.tolist())
        radii.append(long)
        down, right = rows - centre[0], columns - centre[1]
        along = down * math.cos(angle) + right * math.sin(angle)
        across = right * math.cos(angle) - down * math.sin(angle)
        light[(along / long) ** 2 + (across / wide) ** 2 <= 1] = draw.uniform(0.6, 0.95)
    light = light.reshape(side, FINE, side, FINE).mean((1, 3))
    light += NOISE * draw.standard_normal(light.shape)
    return np.rint(255 * light.clip(0, 1)).astype(np.uint8), centres


if __name__ == "__main__":
    _shared.run(make, NEAR)
