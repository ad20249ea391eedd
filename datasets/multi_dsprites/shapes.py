"""The sprites of multi-dSprites: three shapes, six scales, 40 angles, 7 colours.

Every shape is inscribed in the circle that touches its box, so it stays inside at every angle, and
is centred on its centre of mass.

The bank `between` has shapes that are not among these: centred between pixels, at any scale and
angle, and with a different ellipse. It tests how well models that were trained on the first bank
generalise.
"""

import numpy as np

from datasets.scenes import Bank, integers, stream

SHAPES = ("square", "ellipse", "triangle")
SCALES = np.linspace(0.6, 1.0, 6)
ANGLES = np.linspace(0, 2 * np.pi, 40, endpoint=False)
COLORS = np.array([[c >> 2 & 1, c >> 1 & 1, c & 1] for c in range(1, 8)], np.uint8)  # RGB

# A pixel on an edge belongs to the shape, however its coordinates are rounded.
_EDGE = 1e-9


def draw(
    shape: str,
    radius: float,
    angle: float,
    box: int,
    centre: tuple[float, float] = (0, 0),
    ellipse: float = 2,
) -> np.ndarray:
    """Draws a shape: the pixels whose centres lie in it.

    Args:
        shape: a name from `SHAPES`.
        radius: the radius of the circumscribed circle, in pixels.
        angle: in radians, anticlockwise.
        box: height and width of the image.
        centre: offset of the shape's centre from that of the box, in rows and columns.
        ellipse: the ratio of an ellipse's axes.

    Returns:
        The pixels, 0 or 1, [box, box].
    """
    axis = np.arange(box) - (box - 1) / 2
    y, x = centre[0] - axis[:, None], axis[None, :] - centre[1]
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    if shape == "ellipse":
        distance = np.sqrt(u**2 + (ellipse * v) ** 2)
    else:  # a regular polygon: the farthest of its sides, in units of the inradius
        sides = {"square": 4, "triangle": 3}[shape]
        # Vertex up for the triangle, side up for the square.
        normals = np.pi * (2 * np.arange(sides) / sides + 1 / 2 - (sides % 2))
        along = [np.cos(n) * u + np.sin(n) * v for n in normals]
        distance = np.max(along, axis=0) / np.cos(np.pi / sides)
    return (distance <= 1 + _EDGE).astype(np.uint8)


def make_bank(box: int) -> Bank:
    """Draws every combination of the factors.

    Args:
        box: height and width of a sprite.

    Returns:
        The sprites, [5040, box, box, 3], and their attributes.
    """
    index = np.indices((len(SHAPES), len(SCALES), len(ANGLES), len(COLORS)))
    shape, scale, angle, color = index.reshape(4, -1).astype(np.int32)
    outlines = np.array(
        [[[draw(s, c * box / 2, a, box) for a in ANGLES] for c in SCALES] for s in SHAPES]
    )
    sprites = outlines[shape, scale, angle][..., None] * COLORS[color][:, None, None, :]
    return Bank(sprites, {"shape": shape, "scale": scale, "angle": angle, "color": color})


def make_bank_between(box: int) -> Bank:
    """Draws shapes at random angles, centres and scales from 0.5 to 1, with ellipses of 3:2.

    Args:
        box: height and width of a sprite.

    Returns:
        The sprites, [5040, box, box, 3], and their attributes.
    """
    size = 5_040
    bits = stream("multi_dsprites", "between")
    shape, color = (integers(bits, k, size) for k in (len(SHAPES), len(COLORS)))
    scale, angle = 500 + integers(bits, 501, size), integers(bits, 36_000, size)
    centres = integers(bits, 1_000, (size, 2)) / 1_000 - 0.5
    outlines = np.array(
        [
            # Half a pixel is left for the centre to move in.
            draw(SHAPES[s], c / 1_000 * (box - 1) / 2, np.radians(a / 100), box, centre, 3 / 2)
            for s, c, a, centre in zip(shape, scale, angle, centres, strict=True)
        ]
    )
    sprites = outlines[..., None] * COLORS[color][:, None, None, :]
    attributes = {"shape": shape, "scale": scale, "angle": angle, "color": color}
    return Bank(sprites, {name: values.astype(np.int32) for name, values in attributes.items()})


BANKS = {"grid": make_bank, "between": make_bank_between}
