"""The sprites of multi-dSprites: three shapes, six scales, 40 angles, 7 colours.

Every shape is inscribed in the circle that touches its box, so it stays inside
at every angle, and is centred on its centre of mass.
"""

import numpy as np

from datasets.scenes import Bank

SHAPES = ("square", "ellipse", "triangle")
SCALES = np.linspace(0.6, 1.0, 6)
ANGLES = np.linspace(0, 2 * np.pi, 40, endpoint=False)
COLORS = np.array([[c >> 2 & 1, c >> 1 & 1, c & 1] for c in range(1, 8)], np.uint8)  # RGB

# A pixel on an edge belongs to the shape, whichever way its coordinates round.
_EDGE = 1e-9


def draw(shape: str, radius: float, angle: float, box: int) -> np.ndarray:
    """The pixels of a [box, box] grid whose centres lie in the shape, as 0 or 1.

    `radius` is that of the circumscribed circle; `angle` turns anticlockwise.
    """
    axis = np.arange(box) - (box - 1) / 2
    y, x = -axis[:, None], axis[None, :]
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    if shape == "ellipse":  # axes 2 : 1
        distance = np.sqrt(u**2 + (2 * v) ** 2)
    else:  # a regular polygon: the farthest of its sides, in units of the inradius
        sides = {"square": 4, "triangle": 3}[shape]
        # Vertex up for the triangle, side up for the square.
        normals = np.pi * (2 * np.arange(sides) / sides + 1 / 2 - (sides % 2))
        along = [np.cos(n) * u + np.sin(n) * v for n in normals]
        distance = np.max(along, axis=0) / np.cos(np.pi / sides)
    return (distance <= 1 + _EDGE).astype(np.uint8)


def make_bank(box: int) -> Bank:
    """Every combination of the factors, [5040, box, box, 3]."""
    index = np.indices((len(SHAPES), len(SCALES), len(ANGLES), len(COLORS)))
    shape, scale, angle, color = index.reshape(4, -1).astype(np.int32)
    outlines = np.array(
        [[[draw(s, c * box / 2, a, box) for a in ANGLES] for c in SCALES] for s in SHAPES]
    )
    sprites = outlines[shape, scale, angle][..., None] * COLORS[color][:, None, None, :]
    return Bank(sprites, {"shape": shape, "scale": scale, "angle": angle, "color": color})
