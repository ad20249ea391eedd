"""Pictures of detected objects, as pixels: outlines on images, crops, groups of objects."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lavae_jax import masks, objects
from lavae_jax.groups import Group
from lavae_jax.images import Images
from lavae_jax.objects import Record
from lavae_jax.preprocessing import as_levels

OVERLAY = 1024  # pixels: the largest side to which overlays of small images are enlarged
OUTLINE = (255, 96, 0)  # visible on black, on white, and on any grey
DIMMEST = 0.05  # the lowest level that is scaled to white: images without brighter pixels stay dark
SHOWN = 6  # objects of a group that are drawn
TILE, GAP, TEXT = 64, 6, 92  # pixels, in the picture of groups


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Converts an image to RGB; its brightest pixel becomes white.

    Args:
        image: [H, W] or [H, W, C], of any type.

    Returns:
        [H, W, 3], uint8.
    """
    levels = as_levels(image)
    levels = np.clip(levels / np.clip(levels.max(), DIMMEST, 1), 0, 1)
    return np.rint(255 * np.broadcast_to(levels, (*levels.shape[:2], 3))).astype(np.uint8)


def overlay(image: np.ndarray, record: Record) -> Image.Image:
    """Draws outlines and numbers of objects on an image; small images are enlarged.

    Args:
        image: [H, W] or [H, W, C], as it was read.
        record: the record of the image, whose objects have masks.

    Returns:
        The picture.
    """
    scale = max(1, OVERLAY // max(record["height"], record["width"]))
    picture = outlined(image, record, scale)
    pen = ImageDraw.Draw(picture)
    for number, thing in enumerate(record["objects"]):
        left, top, bottom = (
            scale * at for at in (thing["left"], thing["top"], thing["top"] + thing["height"])
        )
        above = (left, top - 13) if top > 13 else (left, bottom + 2)
        pen.text(above, str(number), fill="yellow", stroke_width=1, stroke_fill="black")
    return picture


def outlined(image: np.ndarray, record: Record, scale: float) -> Image.Image:
    """Draws outlines of objects on an image.

    Args:
        image: [H, W] or [H, W, C], as it was read.
        record: the record of the image, whose objects have masks.
        scale: how many times as large as the image the picture is.

    Returns:
        The picture.
    """
    pixels, labels = to_rgb(image), objects.label_image(record)
    height, width = (max(1, round(scale * length)) for length in labels.shape)
    kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    picture = Image.fromarray(pixels).resize((width, height), kind)
    rows, columns = (
        np.arange(new) * old // new for new, old in zip((height, width), labels.shape, strict=True)
    )
    drawn = np.array(picture)
    outlines = masks.outlines(labels[rows[:, None], columns], max(1, int(scale) // 3))
    drawn[outlines] = OUTLINE
    return Image.fromarray(drawn)


# --- crops -------------------------------------------------------------------


class Crops(NamedTuple):
    """Squares around objects.

    Attributes:
        side: side of a square, in pixels of the images.
        pixels: uint8 [side, side, 3] by the indices of an image and of an object in it.
    """

    side: int
    pixels: dict[tuple[int, int], np.ndarray]


def crops(
    images: Images | Sequence[np.ndarray],
    records: Sequence[Record],
    members: Sequence[tuple[int, int]],
) -> Crops:
    """Cuts squares of one size around objects; each image is read once.

    Args:
        images: raw images of any sizes.
        records: their records.
        members: pairs of an image's index and the index of an object in it.

    Returns:
        A square for each member, centred on the object.
    """
    sizes = [
        max(thing["height"], thing["width"]) for one in records for thing in one["objects"]
    ] or [1]
    half = math.ceil(0.7 * np.quantile(sizes, 0.98)) + 1
    wanted: dict[int, list[int]] = {}
    for i, k in members:
        wanted.setdefault(i, []).append(k)
    pixels = {}
    for i, numbers in sorted(wanted.items()):
        image = to_rgb(np.asarray(images[i]))
        beyond = np.median(image.reshape(-1, 3), axis=0).astype(np.uint8)
        for k in numbers:
            thing = records[i]["objects"][k]
            pixels[i, k] = _square(image, round(thing["row"]), round(thing["column"]), half, beyond)
    return Crops(2 * half + 1, pixels)


def _square(image: np.ndarray, row: int, column: int, half: int, beyond: np.ndarray) -> np.ndarray:
    """A square around a pixel; what is beyond the image's border has the colour `beyond`."""
    square = np.tile(beyond, (2 * half + 1, 2 * half + 1, 1))
    top, left = row - half, column - half
    part = image[max(top, 0) : row + half + 1, max(left, 0) : column + half + 1]
    down, right = max(-top, 0), max(-left, 0)
    square[down : down + part.shape[0], right : right + part.shape[1]] = part
    return square


def tile(pixels: np.ndarray, side: int) -> Image.Image:
    """Resizes a square.

    Args:
        pixels: uint8 [s, s, 3].
        side: side of the result, in pixels.

    Returns:
        The picture.
    """
    enlarges = len(pixels) <= side
    kind = Image.Resampling.NEAREST if enlarges else Image.Resampling.LANCZOS
    return Image.fromarray(pixels).resize((side, side), kind)


# --- groups ------------------------------------------------------------------


def of_groups(
    groups: Sequence[Group],
    sprites: np.ndarray,
    records: Sequence[Record],
    images: Images | Sequence[np.ndarray],
) -> Image.Image:
    """Draws groups in columns, the largest first.

    For each group, it shows the number, the size, the sprite of the most typical object, and a few
    of the group's objects in the images, from the most to the least typical.

    Args:
        groups: groups of objects that look alike.
        sprites: [n, h, w, C], one for each group.
        records: records of the images.
        images: raw images of any sizes.

    Returns:
        The picture.
    """
    found = crops(images, records, [member for group in groups for member in shown(group)])
    columns = 1 if len(groups) <= 10 else 2 if len(groups) <= 30 else 3
    rows = -(-len(groups) // columns)
    wide = TEXT + (1 + SHOWN) * (TILE + GAP) + 5 * GAP
    size = (columns * wide + 2 * GAP, rows * (TILE + GAP) + 3 * GAP)
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    large, small = ImageFont.load_default(18), ImageFont.load_default(12)
    for place, (group, sprite) in enumerate(zip(groups, sprites, strict=True)):
        column, row = divmod(place, rows)
        x, y = 2 * GAP + column * wide, 2 * GAP + row * (TILE + GAP)
        pen.text((x, y + 12), str(group.number), "black", large)
        pen.text((x, y + 36), _number(len(group.members)), "#666", small)
        x += TEXT
        picture.paste(tile(to_rgb(np.clip(sprite, 0, 1)), TILE), (x, y))
        pen.rectangle([x - 1, y - 1, x + TILE, y + TILE], outline="#b85c00")
        x += TILE + 2 * GAP
        for member in shown(group):
            picture.paste(tile(found.pixels[member], TILE), (x, y))
            pen.rectangle([x, y, x + TILE - 1, y + TILE - 1], outline="#ddd")
            x += TILE + GAP
    return picture


def shown(group: Group) -> list[tuple[int, int]]:
    """Chooses some members of a group, evenly from the most to the least typical.

    Args:
        group: a group of objects.

    Returns:
        At most `SHOWN` members.
    """
    last = len(group.members) - 1
    chosen = dict.fromkeys(np.linspace(0, last, min(SHOWN, last + 1)).round().astype(int).tolist())
    return [group.members[k] for k in chosen]


def _number(count: int) -> str:
    return f"{count:,} object{'' if count == 1 else 's'}"
