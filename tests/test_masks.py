"""Which pixels belong to which object, and how masks are written."""

import handmade
import numpy as np
import pytest
from conftest import SMALL
from PIL import Image

import datasets
import lavae_jax
from lavae_jax import masks, objects
from lavae_jax.errors import UserError


def row(*values):
    """A sprite of one row, [1, w, 1]."""
    return np.array(values, np.float32)[None, :, None]


def test_a_foreground_pixel_belongs_to_the_object_that_is_brightest_there():
    """Two sprites of 5 pixels, at columns 3 and 6 of one row, overlap in columns 4 and 5. In column
    5, they are equally bright, so the first has it. Columns 2 and 9 are background."""
    sprites = np.stack([row(0.9, 0.9, 0.9, 0.2, 0.6), row(0.7, 0.6, 0.9, 0.9, 0.0)])
    location = np.array([[0, 3], [0, 6]])
    levels = np.ones((1, 10))
    levels[0, [2, 9]] = 0
    labels = masks.label(location, sprites, levels)
    assert labels.tolist() == [[0, 1, 0, 1, 2, 1, 2, 2, 0, 0]]
    first, second = masks.encode(labels, 2)
    assert (masks.area(first), masks.area(second)) == (3, 3)
    assert first["counts"] == [1, 1, 1, 1, 1, 1, 4]  # one row, so a column is a pixel
    assert second["counts"] == [4, 1, 1, 2, 2]


def test_what_no_object_explains_belongs_to_none():
    """Not even at the sprite's own faint pixels."""
    sprites = np.stack([row(0.5, 0.5, 1e-8)])
    labels = masks.label(np.array([[0, 1]]), sprites, np.ones((1, 5)))
    assert labels.tolist() == [[1, 1, 0, 0, 0]]
    assert not masks.label(np.zeros((0, 2)), sprites[:0], np.ones((4, 5))).any()


def decoded(mask):
    """By COCO's definition: runs of 0 and 1 in turn, column after column."""
    values = np.repeat(np.arange(len(mask["counts"])) % 2, mask["counts"])
    return values.reshape(mask["size"][::-1]).T.astype(bool)


@pytest.mark.parametrize("canvas", [(1, 1), (7, 5), (1, 9), (9, 1), (16, 30)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_run_lengths_have_exactly_the_pixels_of_each_object(canvas, share):
    random = np.random.default_rng(0)
    labels = random.integers(1, 5, canvas) * (random.random(canvas) < share)
    encoded = masks.encode(labels.astype(np.int32), 5)  # the fifth has no pixel
    together = np.stack([decoded(mask) for mask in encoded])
    np.testing.assert_array_equal(together, labels == np.arange(1, 6)[:, None, None])
    assert together.sum(0).max() <= 1
    np.testing.assert_array_equal(masks.decode(encoded, canvas), labels)
    for mask, pixels in zip(encoded, together, strict=True):
        assert sum(mask["counts"]) == labels.size
        assert masks.area(mask) == pixels.sum()
        rows, columns = np.nonzero(pixels)
        corner = [columns.min(), rows.min()] if len(rows) else None
        box = corner and [*corner, np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert masks.box(mask) == box


def test_the_box_of_a_run_over_two_columns_has_all_rows():
    labels = np.zeros((4, 3), np.int32)
    labels[2:, 0] = labels[:2, 1] = 1
    (mask,) = masks.encode(labels, 1)
    assert len(mask["counts"]) == 3  # one run
    assert masks.box(mask) == [0, 0, 2, 4]


def test_a_pixel_belongs_to_an_object_from_a_share_of_its_brightness_on():
    """The brighter object's dim edge is none of its pixels; the dim object is all there."""
    sprites = np.stack([row(0.9, 0.9, 0.9), row(0.3, 0.3, 0.3)])
    levels = np.array([[0.2, 1.0, 0.6, 0.0, 0.2, 0.22, 0.18]])
    labels = masks.label(np.array([[0, 1], [0, 5]]), sprites, levels)
    assert labels.tolist() == [[0, 1, 1, 0, 2, 2, 2]]
    # It is the brightness in the image, however dim the sprites are.
    dim = masks.label(np.array([[0, 1], [0, 5]]), 0.3 * sprites, levels)
    assert dim.tolist() == labels.tolist()


@pytest.mark.parametrize("scale", [0.4, 0.75, 1.7, 5.0])
def test_masks_are_in_the_pixels_of_the_image_whatever_the_model_sees(scale):
    """Two discs that touch, of radii 10 and 7; the model sees the image at another size."""
    rows, columns = np.mgrid[:60, :80]
    discs = np.array([(30, 25, 10), (33, 42, 7)])
    true = [(rows - r) ** 2 + (columns - c) ** 2 <= radius**2 for r, c, radius in discs]
    canvas = round(60 * scale), round(80 * scale)
    half = int(12 * scale) + 1
    on_sprite = np.arange(-half, half + 1)
    distance = np.hypot(on_sprite[:, None], on_sprite)
    sprites = np.stack([distance <= radius * scale for radius in discs[:, 2]])[..., None]
    location = np.rint((discs[:, :2] + 0.5) * scale - 0.5).astype(int)
    labels = masks.label(
        location, sprites.astype(np.float32), (true[0] | true[1]).astype(np.float32), canvas
    )
    for number, own in enumerate(true, 1):
        overlap = ((labels == number) & own).sum() / ((labels == number) | own).sum()
        assert overlap > 0.85


@pytest.mark.parametrize("after", [20, 30, 45, 90])
def test_sprites_keep_their_place_when_they_are_resized(after):
    reached, weights = masks._interpolation(slice(10, 14), 30, after)
    levels = weights.sum(1)
    middle = (np.arange(after)[reached] + 0.5) @ levels / levels.sum()
    np.testing.assert_allclose(middle / after, 12 / 30, rtol=1e-6)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_label_images_have_16_bits(suffix, tmp_path):
    path = tmp_path / f"labels.{suffix}"
    labels = np.array([[0, 1, 2], [65_535, 300, 0]], np.int32)
    masks.write(labels, path)
    with Image.open(path) as image:
        assert image.mode == "I;16"
        np.testing.assert_array_equal(np.asarray(image), labels)
    with pytest.raises(UserError, match="the image has 65,536 objects"):
        masks.write(labels + 1, path)


def test_outlines_run_around_objects_and_between_those_that_touch():
    labels = np.array([[0, 0, 0, 0, 0, 0], [0, 1, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0]])
    expected = np.ones((3, 6), bool)
    expected[1, [1, 3, 4]] = False  # the line between the two is in the first
    np.testing.assert_array_equal(masks.outlines(labels), expected)


def test_a_model_s_records_have_masks_of_its_objects():
    image = handmade.picture((3, 4, True), (10, 12, False), (17, 22, True))[..., 0]
    (record,) = lavae_jax.analyse(handmade.model(), image, masks=True)
    labels = objects.label_image(record)
    np.testing.assert_array_equal(labels > 0, image > 0)  # these objects explain all of it
    for number, thing in enumerate(record["objects"], 1):
        pixels = np.argwhere(labels == number)
        assert thing["area"] == len(pixels) == thing["width"]
        assert (pixels[:, 0] == thing["top"]).all()
        assert pixels[:, 1].min() == thing["left"]
    assert sorted(thing["area"] for thing in record["objects"]) == [1, 2, 2]
    (plain,) = lavae_jax.analyse(handmade.model(), image)
    assert not {"mask", "area", "appearance"} & plain["objects"][0].keys()


def test_masks_of_digits_that_a_model_was_not_trained_on_are_theirs():
    """Its sprites are digits that it was trained on."""
    drawn = datasets.make_builder("multi_mnist/1k_unseen", **SMALL).draw(12, 0, (3, 3))
    records = lavae_jax.analyse(lavae_jax.load("mnist1k"), drawn.image, masks=True)
    overlaps = []
    for record, true in zip(records, drawn.mask, strict=True):
        labels = objects.label_image(record)
        for number in range(1, true.max() + 1):
            own = true == number
            candidates = [labels == k for k in np.unique(labels[own]) if k]
            overlaps.append(max([(own & m).sum() / (own | m).sum() for m in candidates], default=0))
    assert np.mean(overlaps) > 0.9
