"""Custom images: reading, preprocessing, training, and the files that are written about them."""

import csv
import io
import json
import pickle
import zlib

import handmade
import micro
import numpy as np
import pytest
from conftest import ROOT
from micro import metrics, newest
from PIL import Image
from test_normalisation import discs

import lavae_jax
from configs import images as config_of_images
from lavae_jax import bernoulli, crops, images, input_pipeline, objects
from lavae_jax.commands import run_data
from lavae_jax.input_pipeline import ProcessShard
from lavae_jax.normalisation import Components
from lavae_jax.playground import engine
from lavae_jax.preprocessing import ImageError, Preprocessing, as_levels

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (6, 9), np.uint8)
COLOUR = RANDOM.integers(0, 256, (6, 9, 3), np.uint8)


# --- reading -----------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp"])
@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
def test_every_format_gives_the_pixels_that_were_saved(suffix, pixels, tmp_path):
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    read = as_levels(images.open_images(str(tmp_path))[0])
    np.testing.assert_allclose(read, pixels.reshape(6, 9, -1) / 255, atol=1e-6)


def test_modes_of_many_kinds_are_read(tmp_path):
    deep = GREY.astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_allclose(
        as_levels(images.read_image(tmp_path / "deep.png"))[..., 0], GREY / 255
    )
    Image.fromarray(GREY > 99).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(images.read_image(tmp_path / "bits.png"), GREY > 99)
    alpha = np.full((6, 9, 1), 255, np.uint8)
    alpha[:3] = 0
    Image.fromarray(np.concatenate([COLOUR, alpha], -1)).save(tmp_path / "clear.png")
    clear = as_levels(images.read_image(tmp_path / "clear.png"))
    assert not clear[:3].any()
    np.testing.assert_allclose(clear[3:], COLOUR[3:] / 255, atol=1e-6)
    Image.fromarray(GREY).save(tmp_path / "key.png", transparency=int(GREY[0, 0]))
    key = as_levels(images.read_image(tmp_path / "key.png"))
    np.testing.assert_allclose(key.mean(-1), np.where(GREY[0, 0] == GREY, 0, GREY) / 255, atol=1e-6)
    Image.fromarray(GREY).convert("P").save(tmp_path / "palette.png")
    np.testing.assert_allclose(
        as_levels(images.read_image(tmp_path / "palette.png")).mean(-1), GREY / 255, atol=1e-6
    )


def test_a_folder_is_read_in_the_order_of_names_with_its_folders_and_counts(tmp_path):
    (tmp_path / "b").mkdir()
    for k, name in enumerate(["c.PNG", "b/a.png", "a.jpg"]):
        Image.fromarray(np.full((5, 5), 50 * k, np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "found_images.csv").write_text("image,count,unexplained\na.jpg,9,0.5\n")
    (tmp_path / "truth.csv").write_text("file,count\na.jpg,3\nb/a.png,1\nc.PNG,0\n")
    opened = images.open_images(str(tmp_path))
    assert list(opened.names) == ["a.jpg", "b/a.png", "c.PNG"]
    assert list(opened.counts) == [3, 1, 0]
    assert [round(float(opened[i].mean())) for i in range(3)] == [100, 50, 0]


def test_arrays_are_read_and_pickles_are_not(tmp_path):
    np.save(tmp_path / "a.npy", COLOUR[None])
    np.testing.assert_array_equal(images.open_images(str(tmp_path / "a.npy"))[0], COLOUR)
    members = {"x": GREY[None] > 9, "other": np.zeros(3), "count": np.array([4])}
    np.savez(tmp_path / "b.npz", **members)
    opened = images.open_images(str(tmp_path / "b.npz"))
    np.testing.assert_array_equal(opened[0], GREY > 9)
    assert list(opened.counts) == [4]
    np.savez(tmp_path / "c.npz", a=GREY[None], b=GREY[None], evil=np.array([{}], object))
    assert len(images.open_images(str(tmp_path / "c.npz"), "b")) == 1
    for file, member, message in (
        ("c.npz", "", r"none of x, image, images; name one with `member` .--member.: a, b, evil"),
        ("c.npz", "evil", "cannot be read as an array"),
        ("c.npz", "d", "no array 'd'"),
        ("b.npz", "other", r"shape \(3,\); expected \[N, H, W\]"),
    ):
        with pytest.raises(ImageError, match=message):
            images.open_images(str(tmp_path / file), member)
    (tmp_path / "d.npy").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ImageError, match="cannot be read as an array"):
        images.open_images(str(tmp_path / "d.npy"))


def test_a_tfds_data_set_is_a_source_too(mnist_builder, data_dir):
    name = f"tfds:{mnist_builder.info.full_name.rsplit('/', 1)[0]}"
    opened = images.open_images(name, "test", data_dir)
    truth = input_pipeline.open_split(mnist_builder, "test", ("image", "count")).read(range(5))
    assert len(opened) == 60
    assert [opened.counts[i] for i in range(5)] == truth["count"].tolist()
    seen = np.stack([as_levels(opened[i]) for i in range(5)])
    np.testing.assert_array_equal(seen, truth["image"])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "no path to images"),
        ("nowhere", "neither a folder nor a file"),
        ("empty", r"empty nor its subfolders contain images \(.png, .jpg"),
        ("broken", r"broken.1.png cannot be read"),
        ("tfds:no_such_set", "tfds:no_such_set cannot be opened"),
        ("unknown", r"truth.csv has counts, but none for 2.png"),
        ("odd", r"truth.csv: the count of 1.png is 'many'"),
    ],
)
def test_what_cannot_be_read_is_named(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("broken", "unknown", "odd"):
        (tmp_path / name).mkdir()
        for k in (1, 2):
            Image.fromarray(GREY).save(tmp_path / name / f"{k}.png")
    (tmp_path / "broken" / "1.png").write_bytes(b"\x89PNG and no more")
    (tmp_path / "unknown" / "truth.csv").write_text("image,count\n1.png,2\n")
    (tmp_path / "odd" / "truth.csv").write_text("image,count\n1.png,many\n2.png,1\n")
    preprocessing = Preprocessing(1, False, 0.5)
    with pytest.raises(ImageError, match=message):
        crops.Crops(images.open_images(path), preprocessing, (6, 6), with_counts=True)


# --- what a model sees -------------------------------------------------------


def array(values):
    return images._Array(np.asarray(values), "an array")


def test_a_threshold_is_estimated_by_otsu_or_given_and_others_are_refused():
    values = np.concatenate([RANDOM.normal(0.2, 0.05, 500), RANDOM.normal(0.7, 0.05, 100)])
    sample = array(np.clip(values, 0, 1).reshape(1, 20, 30).astype(np.float32))
    assert 0.35 < crops.make_preprocessing(sample, 1, False, "otsu").threshold < 0.55
    assert 0.45 < crops.make_preprocessing(sample, 1, True, "otsu").threshold < 0.65
    assert crops.make_preprocessing(sample, 1, False, "0.25").threshold == 0.25
    assert crops.make_preprocessing(sample, 1, False, "stochastic").threshold == "stochastic"
    for wrong in ("1.5", "dark", "nan"):
        with pytest.raises(ImageError, match=f"threshold='{wrong}' must be a number"):
            crops.make_preprocessing(sample, 1, False, wrong)
    with pytest.raises(ImageError, match=r"every pixel of these images has the same value, 0\.5"):
        crops.make_preprocessing(array(np.full((2, 5, 5), 0.5)), 1, False, "otsu")


def test_a_threshold_is_found_among_few_dark_levels():
    """8-bit values in 16-bit files are within a 256th of black."""
    levels = np.array([[[10, 12, 11], [200, 210, 10]]], np.uint16)
    threshold = crops.make_preprocessing(array(levels), 1, False, "otsu").threshold
    assert 12 < threshold * 65_535 < 200


def test_a_threshold_of_0_leaves_black_pixels_black():
    levels = np.array([[0, 0.001, 0.5], [1, 0, 0.3]], np.float32)
    seen = Preprocessing(1, False, 0.0)(levels)
    np.testing.assert_array_equal(seen[..., 0], [[0, 1, 1], [1, 0, 1]])
    seen = Preprocessing(1, True, 0.0)(levels)  # 1 becomes black
    np.testing.assert_array_equal(seen[..., 0], [[1, 1, 1], [0, 1, 1]])


def test_dark_on_bright_is_inverted_and_colours_become_grey():
    preprocessing = Preprocessing(1, True, 0.5)
    picture = np.ones((4, 4, 3), np.float32)
    picture[1, 2] = 0
    np.testing.assert_array_equal(
        np.argwhere(preprocessing.grey(picture, "x")[..., 0] > 0.5), [[1, 2]]
    )
    with pytest.raises(ImageError, match=r"x has 1 channel, and the model has 3.*channels=1"):
        Preprocessing(3, False, 0.5).grey(picture[..., :1], "x")


def test_a_stochastic_threshold_makes_pixels_foreground_in_proportion_to_their_level():
    preprocessing = Preprocessing(1, False, "stochastic")
    source = crops.Crops(array(np.full((1, 8, 8), 0.3)), preprocessing, (8, 8))
    assert source.varies
    pixels = source.read([0] * 500, range(500))["image"]
    assert set(np.unique(pixels)) == {0, 1}
    assert pixels.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / pixels.size))


def test_crops_are_parts_of_the_image_everywhere_and_depend_on_the_draw_alone():
    image = np.zeros((1, 9, 7), bool)
    image[0, 4, 3] = True  # the only pixel that every crop of 5 x 4 has
    source = crops.Crops(array(image), Preprocessing(1, False, 0.5), (5, 4), seed=3)
    assert source.varies
    drawn = source.read([0] * 400, range(400))["image"]
    locations = {tuple(np.argwhere(crop[..., 0])[0]) for crop in drawn}
    assert locations == {(r, c) for r in range(5) for c in range(4)}
    np.testing.assert_array_equal(source.read([0] * 9, range(391, 400))["image"], drawn[391:])
    np.testing.assert_array_equal(source.read([0])["image"], source.read([0])["image"])


def test_two_seeds_give_different_crops(tmp_path):
    """One of 30 x 30 crops twice in a row has a probability of 1 in 900."""
    np.save(tmp_path / "a.npy", np.random.default_rng(1).random((1, 36, 36)) > 0.5)
    config = config_of_images.get_config()
    config.dataset.update(path=str(tmp_path / "a.npy"), canvas=7)

    def drawn(seed):
        config.seed = seed
        return crops.open_crops(config).read([0] * 50, range(50))["image"]

    one, other, again = map(drawn, (1, 2, 1))
    np.testing.assert_array_equal(one, again)
    assert np.mean([np.array_equal(*pair) for pair in zip(one, other, strict=True)]) < 0.1


@pytest.mark.parametrize("images_in_memory", [0, 1, 3])
def test_each_crop_is_of_its_own_image_after_a_file_was_skipped(
    images_in_memory, tmp_path, monkeypatch
):
    """Image k has its only bright pixel in row k."""
    for k in range(4):
        pixels = np.zeros((6, 8), np.uint8)
        pixels[k, 7 - k] = 200
        Image.fromarray(pixels).save(tmp_path / f"{k}.png")
    (tmp_path / "1.png").write_bytes(b"no image")
    monkeypatch.setattr(crops, "KEPT_BYTES", 6 * 8 * images_in_memory + 1)
    opened = images.open_images(str(tmp_path))
    source = crops.Crops(opened, Preprocessing(1, False, 0.5), (6, 8), skip_unreadable=True)
    assert source.names == ["0.png", "2.png", "3.png"]
    read = source.read([2, 0, 1, 2])["image"]
    assert np.argwhere(read[..., 0]).tolist() == [[0, 3, 4], [1, 0, 7], [2, 2, 5], [3, 3, 4]]


def test_each_count_is_of_its_own_image_after_a_file_was_skipped(tmp_path):
    for k in range(4):
        Image.fromarray(np.eye(6, dtype=np.uint8) * 200).save(tmp_path / f"{k}.png")
    (tmp_path / "1.png").write_bytes(b"no image")
    (tmp_path / "truth.csv").write_text("file,count\n0.png,5\n1.png,6\n2.png,7\n3.png,8\n")
    opened, preprocessing = images.open_images(str(tmp_path)), Preprocessing(1, False, 0.5)
    source = crops.Crops(opened, preprocessing, (6, 6), skip_unreadable=True, with_counts=True)
    assert source.read([2, 0, 1])["count"].tolist() == [8, 5, 7]


def test_small_images_have_black_below_and_to_the_right_and_are_always_the_same():
    source = crops.Crops(array(np.ones((2, 3, 4), bool)), Preprocessing(1, False, 0.5), (5, 6))
    assert not source.varies
    expected = np.zeros((5, 6, 1))
    expected[:3, :4] = 1
    np.testing.assert_array_equal(source.read([1], [7])["image"], [expected])


def test_batches_of_crops_are_the_same_in_any_number_of_processes():
    source = crops.Crops(array(RANDOM.random((8, 12, 12))), Preprocessing(1, False, 0.5), (5, 5))
    one = next(input_pipeline.train_batches(source, 4, 0, shard=ProcessShard()))["image"]
    parts = [
        next(input_pipeline.train_batches(source, 4, 0, shard=ProcessShard(p, 2)))["image"]
        for p in (0, 1)
    ]
    np.testing.assert_array_equal(one, np.concatenate(parts, axis=1))


def test_images_unsuitable_for_training_are_refused():
    preprocessing = Preprocessing(1, False, 0.5)
    square = np.zeros((3, 20, 20), bool)
    square[:, 4:9, 4:9] = True
    assert crops.check(crops.Crops(array(square), preprocessing, (20, 20)), 7, 10) == []
    for values, canvas, sprite, message in (
        (square, 20, 21, "a canvas of 20x20 is smaller than a sprite of 21"),
        (square[:, :6], 20, 7, r"0 \(6x20 pixels\) is smaller than a sprite \(7x7\)"),
        (~square & False, 20, 7, "every pixel is black"),
        (~square, 20, 7, "94% of the pixels are foreground"),
    ):
        with pytest.raises(ImageError, match=message):
            crops.check(crops.Crops(array(values), preprocessing, (canvas, canvas)), sprite, 10)
    crowded = np.zeros((3, 20, 20), bool)
    crowded[:, ::4, ::4] = crowded[:, 1::4, ::4] = crowded[:, ::4, 1::4] = True
    (said,) = crops.check(crops.Crops(array(crowded), preprocessing, (20, 20)), 7, 10)
    assert "up to 25 connected components, but config.model.max_objects=10" in said
    (said,) = crops.check(crops.Crops(array(square), preprocessing, (20, 20)), 3, 10)
    assert "are 5 pixels or longer, but config.model.sprite_size=3" in said
    with pytest.raises(ImageError, match="100% of the pixels are foreground"):  # not of the canvas
        crops.check(crops.Crops(array(square | True), preprocessing, (40, 40)), 7, 10)


def test_counts_of_images_that_are_larger_than_the_canvas_are_not_shown(tmp_path):
    square = np.zeros((3, 20, 20), bool)
    square[:, 4:9, 4:9] = True
    np.savez(tmp_path / "x.npz", x=square, count=np.ones(3, int))
    opened, preprocessing = (
        images.open_images(str(tmp_path / "x.npz")),
        Preprocessing(1, False, 0.5),
    )
    whole = crops.Crops(opened, preprocessing, (20, 20), with_counts=True)
    assert whole.read([0, 2])["count"].tolist() == [1, 1]
    parts = crops.Crops(opened, preprocessing, (16, 16), with_counts=True)
    assert "count" not in parts.read([0])
    (said,) = crops.check(parts, 7, 10)
    assert "count accuracy is not shown" in said


@pytest.mark.parametrize("counts", [np.ones(2, int), np.ones(3), np.array(["a", {}, 1], object)])
def test_invalid_counts_are_an_error_only_in_training(counts, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.eye(9)[None].repeat(3, 0), count=counts)
    opened, preprocessing = (
        images.open_images(str(tmp_path / "x.npz")),
        Preprocessing(1, False, 0.5),
    )
    assert crops.Crops(opened, preprocessing, (9, 9)).read([0])["image"].sum() == 9
    with pytest.raises(ImageError, match=r"`count` in .*x.npz"):
        crops.Crops(opened, preprocessing, (9, 9), with_counts=True)


def test_other_images_have_another_fingerprint(tmp_path):
    def folder(*values):
        for k, value in enumerate(values):
            Image.fromarray(np.full((8, 8), value, np.uint8)).save(tmp_path / f"{k}.bmp")
        return images.open_images(str(tmp_path)).fingerprint

    first = folder(1, 2)
    assert folder(1, 2) == first
    assert folder(1, 2, 3) != first
    assert folder(1, 3) != folder(1, 2)  # of the same names and sizes
    three = np.zeros((3, 4, 4))
    three[1] = 1  # neither the first nor the last
    assert array(three).fingerprint != array(np.zeros((3, 4, 4))).fingerprint
    assert array(np.zeros((2, 4, 4))).fingerprint != array(np.ones((2, 4, 4))).fingerprint
    assert array(np.zeros((2, 4, 4))).fingerprint != array(np.zeros((3, 4, 4))).fingerprint


def test_stacks_and_damaged_files_are_named(tmp_path):
    pages = [Image.fromarray(GREY) for _ in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(ImageError, match=r"stack.tif has 3 pages; save each as a file of its own"):
        images.read_image(tmp_path / "stack.tif")
    png = io.BytesIO()
    pages[0].save(png, "png")
    header, rest = png.getvalue()[:33], png.getvalue()[33:]
    chunk = b"gAMA" + b"\0"  # a byte where there must be four
    chunk = (1).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    (tmp_path / "gamma.png").write_bytes(header + chunk + rest)
    with pytest.raises(ImageError, match=r"gamma.png cannot be read"):
        images.read_image(tmp_path / "gamma.png")


def test_orientation_formats_and_large_files(tmp_path, monkeypatch):
    upright = Image.fromarray(GREY)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated
    upright.save(tmp_path / "rotated.png", exif=exif)
    np.testing.assert_array_equal(images.read_image(tmp_path / "rotated.png"), np.rot90(GREY, -1))
    upright.save(tmp_path / "a.webp", lossless=True)
    upright.save(tmp_path / "b.gif")
    assert len(images.open_images(str(tmp_path))) == 3
    for name in ("a.webp", "b.gif"):
        read = as_levels(images.read_image(tmp_path / name))
        np.testing.assert_allclose(read.mean(-1), GREY / 255, atol=0.02)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # above twice as many, Pillow refuses
    assert images.read_image(tmp_path / "rotated.png").shape == (9, 6)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_a_link_to_nowhere_is_an_unreadable_file(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "1.png")
    (tmp_path / "2.png").symlink_to(tmp_path / "nowhere.png")
    opened = images.open_images(str(tmp_path))
    assert opened.fingerprint
    made = Preprocessing(1, False, 0.5)
    assert crops.Crops(opened, made, (6, 9), skip_unreadable=True).names == ["1.png"]
    records = lavae_jax.analyse(handmade.model(), opened)
    assert [bool(record["error"]) for record in records] == [False, True]


def test_unreadable_files_can_be_skipped(tmp_path):
    for k in (1, 2, 3):
        Image.fromarray(GREY).save(tmp_path / f"{k}.png")
    (tmp_path / "2.png").write_bytes(b"no image")
    opened, preprocessing = images.open_images(str(tmp_path)), Preprocessing(1, False, 0.5)
    with pytest.raises(ImageError, match=r"2.png cannot be read.*unreadable='skip'"):
        crops.Crops(opened, preprocessing, (6, 9))
    source = crops.Crops(opened, preprocessing, (6, 9), skip_unreadable=True)
    assert source.names == ["1.png", "3.png"]
    assert len(source.skipped) == 1
    with pytest.raises(ImageError, match=r"2.png cannot be read.*unreadable='skip'"):
        crops.make_preprocessing(opened, 1, False, "otsu")
    assert (
        0 < crops.make_preprocessing(opened, 1, False, "otsu", skip_unreadable=True).threshold < 1
    )


def test_sizes_are_proposed_from_connected_components():
    picture = np.zeros((1, 200, 200), bool)
    picture[0, 10:21, 10:15] = picture[0, 50:54, 80:93] = True  # sides of 11 and 13
    picture[0, 100, 100] = True  # a speck
    source = crops.Crops(array(picture), Preprocessing(1, False, 0.5), (200, 200))
    found = crops.parts(source)
    assert sorted(found.side) == [11, 13]
    assert crops.propose(found, 200) == (15, 64, 10)


@pytest.mark.parametrize(
    ("counts", "proposed"),
    [
        ([1, 3], 10),  # at least 10
        ([8], 10),
        ([9], 12),  # a quarter more, rounded up
        ([16] * 5, 20),
        ([17] * 2, 22),
        ([9] * 999 + [90], 12),  # one canvas in a thousand may have more
    ],
)
def test_proposed_max_objects_is_a_quarter_more_than_the_largest_count(counts, proposed):
    found = crops.Parts(np.full(4, 11), np.array(counts), 0.1)
    assert crops.propose(found, 200).max_objects == proposed


def test_settings_follow_the_size_of_sprites():
    config = config_of_images.get_config()
    for size, radius, window, cell in ((17, 8, 21, 6), (5, 2, 9, 2), (40, 20, 45, 13)):
        config.model.sprite_size = size
        assert config.model.peak_radius == radius
        assert config.model.appearance.window == window
        assert config.auxiliary.cell == config.auxiliary.space_to_depth == cell
    config.model.max_objects = 23
    assert config.budget.slots == config.budget.objects_per_image == 23


def test_the_radius_within_which_the_likelihood_decides_follows_the_size_of_sprites():
    config = config_of_images.get_config("sleep")
    assert (config.model.peak_radius, config.model.resolve_radius) == (1, 5)
    config.model.sprite_size, config.model.max_objects = 33, 12
    assert (config.model.peak_radius, config.model.resolve_radius) == (1, 11)
    assert config.curriculum.sleep.max_objects == 12
    config = config_of_images.get_config("grey")  # images are zoomed instead
    config.model.sprite_size = 41
    assert (config.model.peak_radius, config.model.resolve_radius) == (1, 4)


def test_the_usual_size_is_that_of_images_with_several_objects_if_there_are_any():
    """The median of 10, 12 and 20, which are medians of three objects or more."""

    def components(*diameters):
        is_solid = np.append(np.ones(len(diameters), bool), False)
        return Components(np.array([*diameters, 90.0]), is_solid)  # with a clump

    several = [components(9, 10, 40), components(12, 12, 12, 50, 1), components(20, 20, 20, 20)]
    few = [components(30), components(31, 31), components(32), components(33), components()]
    assert crops.usual_diameter(several + few) == 12
    assert crops.usual_diameter(few) == 31.5
    with pytest.raises(ImageError, match="no image shows anything"):
        crops.usual_diameter([components()])


@pytest.mark.parametrize(("wanted", "number"), [(0.1, 5), (7, 7), (1, 1)])
def test_held_out_is_a_share_or_a_number(wanted, number):
    assert crops.held_out(wanted, 50) == number


@pytest.mark.parametrize("wanted", [0, 50, 0.999])
def test_something_must_be_held_out_and_something_left(wanted):
    with pytest.raises(ImageError, match="leaves none"):
        crops.held_out(wanted, 50)


def test_a_share_of_a_few_images_is_at_least_one():
    assert crops.held_out(0.1, 2) == crops.held_out(0.1, 5) == 1
    with pytest.raises(ImageError, match="leaves none"):
        crops.held_out(0.1, 1)


# --- programs ----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Dark pixels and pairs of them on white, of two sizes, and one file that is none."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(12):
        canvas = (30, 40) if k % 2 else (24, 24)
        foreground = handmade.picture((3 + k, 5, False), (8, 15, True), canvas=canvas)[..., 0]
        Image.fromarray((255 * (1 - foreground)).astype(np.uint8)).save(folder / f"{k:02}.png")
    return folder


def test_no_held_out_image_is_trained_on(folder):
    config = config_of_images.get_config("cpu")
    config.dataset.update(path=str(folder), invert=True, canvas=40, held_out=4)
    config.model.sprite_size = 5
    data = run_data.open_training_data(config)
    seen = [part.read(range(len(part)))["image"] for part in (data.training, data.held_out)]
    whole = [1 - images.read_image(path) / 255 for path in sorted(folder.iterdir())]
    for image, raw in zip(np.concatenate(seen), whole, strict=True):
        np.testing.assert_array_equal(image[: raw.shape[0], : raw.shape[1], 0], raw)
    assert len(data.held_out) == 4


def training(folder, workdir, steps, config="configs/images.py:cpu", **changes):
    """The program and its flags for a short run on a folder of dark objects."""
    fields = {**micro.FIELDS, **micro.LAVAE_FIELDS, "dataset.held_out": 4}
    fields |= {"curriculum.auxiliary.steps": 1, "curriculum.peaks.steps": 1}
    fields |= {"dataset.path": folder, "dataset.invert": True, "dataset.canvas": 24}
    fields |= {"model.sprite_size": 5, "num_train_steps": steps}
    del fields["dataset.overrides"], fields["model.appearance.window"]
    flags = [f"--config.{field}={value}" for field, value in (fields | changes).items()]
    return ["train.py", f"--config={config}", *flags, f"--workdir={workdir}"]


def test_a_run_on_a_folder_resumes_bit_for_bit(folder, launch, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    stochastic = {"dataset.threshold": "stochastic"}
    for workdir, steps in (("whole", 4), ("pieces", 2), ("pieces", 4)):
        run = launch(*training(folder, tmp_path / workdir, steps, **stochastic))
        assert run.returncode == 0, run.stderr
    assert "held-out count" not in run.stdout  # nobody knows it
    whole, pieces = newest(tmp_path / "whole"), newest(tmp_path / "pieces")
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(values, pieces.arrays[name], err_msg=name)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")


def test_a_run_on_grey_images_resumes_bit_for_bit_in_both_phases(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder, rng = tmp_path / "grey", np.random.default_rng(0)
    folder.mkdir()
    for k in range(6):
        levels = 0.2 + 0.7 * discs([(15, 15 + k), (45, 20), (40, 48)], 6 + k % 2, 64)[..., 0]
        levels += rng.normal(0, 0.01, levels.shape)
        Image.fromarray(np.rint(255 * levels).astype(np.uint8)).save(folder / f"{k}.png")
    fields = {**micro.FIELDS, **micro.LAVAE_FIELDS, "dataset.held_out": 2}
    fields |= {"dataset.path": folder, "dataset.canvas": 48, "model.sprite_size": 31}
    fields |= {"curriculum.pasted.steps": 2, "curriculum.pasted.objects": 8}
    fields |= {"curriculum.pasted.max_objects": 3, "curriculum.portraits.steps": 2}
    del fields["dataset.overrides"], fields["auxiliary.width"]
    flags = [f"--config.{field}={value}" for field, value in fields.items()]
    for workdir, steps in (("whole", 4), ("pieces", 3), ("pieces", 4)):
        more = [f"--workdir={tmp_path / workdir}", f"--config.num_train_steps={steps}"]
        run = launch("train.py", "--config=configs/images.py:grey", *flags, *more)
        assert run.returncode == 0, run.stderr
    used = json.loads((tmp_path / "whole" / "config.json").read_text())["dataset"]
    assert 11 < float(used["diameter"]) < 16  # of discs with radii of 6 and 7 pixels
    whole, pieces = newest(tmp_path / "whole"), newest(tmp_path / "pieces")
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(values, pieces.arrays[name], err_msg=name)
    assert whole.arrays["state.saved.portraits.calibration"][0] > 0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")


def test_a_run_is_not_resumed_with_other_images(folder, launch, tmp_path, monkeypatch):
    """Of the same names and sizes."""
    monkeypatch.chdir(tmp_path)
    arguments = training(folder, tmp_path / "run", 2, config="images:cpu")
    assert launch(*arguments).returncode == 0
    content = bytearray((folder / "00.png").read_bytes())
    other = np.asarray(Image.open(folder / "00.png"))[::-1]
    Image.fromarray(other).save(folder / "00.png")
    (folder / "00.png").write_bytes((folder / "00.png").read_bytes().ljust(len(content), b"\0"))
    again = launch(*arguments)
    assert again.returncode == 1
    assert "dataset.images" in again.stderr


@pytest.mark.filterwarnings("ignore:.*out of reach")
def test_python_the_command_and_the_page_find_the_same_objects(launch, tmp_path, monkeypatch):
    """Of a model that was trained on dark objects with noise."""
    monkeypatch.chdir(ROOT)
    folder, rng = tmp_path / "noisy", np.random.default_rng(0)
    folder.mkdir()
    drawn = [handmade.picture((3 + k, 5, False), (8, 15, True), canvas=(24, 24)) for k in range(8)]
    for k, foreground in enumerate(drawn):
        levels = 0.8 - 0.6 * foreground[..., 0] + rng.normal(0, 0.04, foreground.shape[:2])
        Image.fromarray(np.rint(255 * levels).astype(np.uint8)).save(folder / f"{k}.png")
    low = {"model.threshold": -0.5}  # a network that has hardly been trained finds something
    assert launch(*training(folder, tmp_path / "run", 4, **low)).returncode == 0
    flags = [f"--checkpoint={tmp_path / 'run'}", f"--images={folder}"]
    result = launch("infer.py", *flags, f"--output={tmp_path / 'found.jsonl'}")
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert sum(record["count"] for record in records) > 0

    model = lavae_jax.load(tmp_path / "run")
    assert model.preprocessing.invert
    assert 0.3 < model.preprocessing.threshold < 0.7
    playground = engine.Engine({"run": model})
    for k, record in enumerate(records):
        raw = np.asarray(Image.open(folder / f"{k}.png"))
        np.testing.assert_array_equal(model.preprocess(raw)[0], drawn[k])
        scene = model.infer(raw)
        (measured,) = model.measure(scene)
        for ours, theirs in zip(measured, record["objects"], strict=True):
            assert (ours.row, ours.column) == pytest.approx((theirs["row"], theirs["column"]))
            assert ours.score == pytest.approx(theirs["score"])
        colours = engine.to_base64(np.repeat(raw[..., None], 3, -1))
        sent = {"model": "run", "height": 24, "width": 24, "colours": colours, "invert": True}
        (seen,) = playground.preprocess([sent])
        (answer,) = playground.infer([{"model": "run", **seen}])
        found = [thing["location"] for thing in answer["objects"]]
        slots = min(int(scene.count[0]), engine.FEWEST_SLOTS)
        assert found == np.asarray(scene.location)[0, :slots].tolist()


def test_a_model_s_own_preprocessing_is_used_where_none_is_given(launch, tmp_path, monkeypatch):
    """Of two dark objects, one faint, which the automatic threshold leaves out."""
    monkeypatch.chdir(ROOT)
    run = handmade.write_run(tmp_path / "run", "")
    config = json.loads((run / "config.json").read_text())
    config["dataset"] |= {"invert": True, "threshold": "0.1"}
    (run / "config.json").write_text(json.dumps(config))
    raw = np.full((24, 30), 255, np.uint8)
    raw[5, 20], raw[17, 8] = 0, 204  # 1 and 0.2 when inverted
    found = [(5, 20), (17, 8)]
    Image.fromarray(raw).save(tmp_path / "a.png")

    model = lavae_jax.load(run)
    assert model.preprocessing == Preprocessing(1, True, 0.1)
    assert np.argwhere(model.preprocess(raw)[0, ..., 0]).tolist() == [list(at) for at in found]
    for changes, foreground in (({"threshold": "auto"}, 1), ({"invert": False}, raw.size - 1)):
        assert model.with_preprocessing(**changes).preprocess(raw).sum() == foreground

    playground = engine.Engine({"run": model})
    colours = engine.to_base64(np.repeat(raw[..., None], 3, -1))
    request = {"model": "run", "height": 24, "width": 30, "colours": colours}
    (answer,) = playground.preprocess([request])
    seen = engine.unpack(answer["image"], (64, 64, 1))
    assert np.argwhere(seen[..., 0]).tolist() == [[20 + r, 17 + c] for r, c in found]

    flags = [f"--checkpoint={run}", f"--images={tmp_path / 'a.png'}"]
    result = launch("infer.py", *flags, f"--output={tmp_path / 'found.jsonl'}")
    assert result.returncode == 0, result.stderr
    (record,) = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    assert sorted((thing["top"], thing["left"]) for thing in record["objects"]) == found


# --- measuring ---------------------------------------------------------------


def measured(location, canvas, sprite, picture=None):
    (one,) = objects.measure(
        np.array([location]), sprite[None, ..., None], np.ones(1), canvas, picture, bernoulli
    )
    return one


CORNER = np.zeros((5, 5), np.float32)  # pixels above, right and at the centre
CORNER[1, 2] = CORNER[2, 2] = CORNER[2, 3] = 1.0


@pytest.mark.parametrize(
    ("location", "canvas", "centre", "box"),
    [
        ((5, 40), (10, 50), (5 - 1 / 3, 40 + 1 / 3), (4, 40, 2, 2)),
        ((40, 5), (50, 10), (40 - 1 / 3, 5 + 1 / 3), (39, 5, 2, 2)),
        ((9, 49), (10, 50), (8.5, 49), (8, 49, 2, 1)),  # the pixel to the right is cut off
        ((0, 30), (10, 50), (0, 30.5), (0, 30, 1, 2)),  # the pixel above is
        ((49, 9), (50, 10), (48.5, 9), (48, 9, 2, 1)),
    ],
)
def test_objects_on_oblong_canvases_are_measured_where_they_are(location, canvas, centre, box):
    """Brightness is the mean of the picture over the pixels of the object."""
    picture = np.arange(np.prod(canvas), dtype=np.float32).reshape(canvas)
    one = measured(location, canvas, CORNER, picture)
    assert (one.row, one.column) == pytest.approx(centre)
    assert (one.top, one.left, one.height, one.width) == box
    assert one.brightness == pytest.approx(canvas[1] * centre[0] + centre[1])


@pytest.mark.parametrize("canvas", [(12, 60), (60, 12)])
def test_a_model_measures_objects_on_oblong_canvases(canvas):
    model = handmade.model()
    along, across = (4, 50) if canvas[0] < canvas[1] else (50, 4)
    image = handmade.picture((along, across, True), canvas=canvas)
    (found,) = model.measure(model.infer(image), image[..., 0] * 0.75)
    (one,) = found
    assert (one.row, one.column) == pytest.approx((along, across + 0.5), abs=1e-3)
    assert (one.top, one.left, one.height, one.width) == (along, across, 1, 2)
    assert one.brightness == 0.75
    with pytest.raises(ValueError, match="measure expects 1 images"):
        model.measure(model.infer(image), image.swapaxes(0, 1)[None])


def test_a_faint_sprite_is_measured_by_its_brightest_pixels():
    """None of its pixels is more likely foreground than not."""
    sprite = np.zeros((5, 5), np.float32)
    sprite[1, 2], sprite[1, 3], sprite[3, 0] = 0.4, 0.4, 0.2
    picture = np.zeros((20, 30), np.float32)
    picture[9, 7:9], picture[11, 5] = (0.5, 0.7), 1.0
    one = measured((10, 7), (20, 30), sprite, picture)
    assert (one.top, one.left, one.height, one.width) == (9, 7, 1, 2)
    assert (one.row, one.column) == pytest.approx((9.4, 7), abs=1e-6)  # of all pixels
    assert one.brightness == pytest.approx(0.6)


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_objects_are_written_in_three_formats(folder, launch, tmp_path, data_dir):
    model = handmade.write_run(tmp_path / "model", data_dir)
    (folder / "05.png").write_bytes(b"no image")
    flags = [f"--checkpoint={model}", f"--images={folder}", "--invert", "--num_samples=2"]
    flags += [f"--overlay={tmp_path / 'overlays'}"]
    output = {kind: tmp_path / f"objects.{kind}" for kind in ("csv", "jsonl", "json")}
    first = launch("infer.py", *flags, f"--output={output['jsonl']}")
    assert first.returncode == 0, first.stderr
    assert "22 objects in 11 images" in first.stdout
    assert "05.png cannot be read" in first.stdout
    lines = output["jsonl"].read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["image"] for record in records] == [f"{k:02}.png" for k in range(12)]
    one = records[4]
    assert (one["count"], one["unexplained"]) == (2, 0.0)
    single, pair = sorted(one["objects"], key=lambda thing: thing["column"])
    assert (single["top"], single["left"], single["height"], single["width"]) == (7, 5, 1, 1)
    assert (pair["row"], pair["column"]) == pytest.approx((8.0, 15.5), abs=1e-3)
    assert (pair["height"], pair["width"], pair["brightness"]) == (1, 2, 1.0)
    assert 0.9 < pair["score"] <= 1
    assert records[5]["error"]
    assert len(list((tmp_path / "overlays").iterdir())) == 11

    second = launch("infer.py", *flags, f"--output={output['csv']}", "--max_objects=1")
    assert second.returncode == 0, second.stderr
    rows = read_rows(output["csv"])
    assert len(rows) == 11
    assert rows[0]["image"] == "00.png"
    summary = read_rows(tmp_path / "objects_images.csv")
    assert [row["count"] for row in summary] == ["1"] * 5 + [""] + ["1"] * 6
    alone = [flag for flag in flags if not flag.startswith(("--images", "--overlay"))]
    alone += [f"--images={folder / '04.png'}", f"--output={output['json']}"]
    third = launch("infer.py", *alone, "--min_score=1")
    assert third.returncode == 0, third.stderr
    (image,) = json.loads(output["json"].read_text())["images"]
    assert (image["count"], image["unexplained"]) == (0, 1.0)  # by what is left out, too
    third = launch("infer.py", *alone)
    assert third.returncode == 0, third.stderr
    coco = json.loads(output["json"].read_text())
    (image,) = coco["images"]
    assert (image["file_name"], image["count"]) == ("04.png", 2)
    assert -60 < image["log_p"] < 0
    boxes = sorted(annotation["bbox"] for annotation in coco["annotations"])
    assert boxes == [[5, 7, 1, 1], [15, 8, 2, 1]]
    assert coco["categories"] == [{"id": 1, "name": "object"}]


def test_what_was_found_before_an_interruption_is_kept_for_the_same_flags(tmp_path):
    output = tmp_path / "objects.jsonl"
    first = objects.PartialRecords(output, {"model": "a"})
    first.add([objects.failure("1.png", "torn"), objects.failure("2.png", "torn")])
    file = tmp_path / "objects.jsonl.unfinished"
    file.write_text(file.read_text()[:-5])  # killed in the middle of a line
    second = objects.PartialRecords(output, {"model": "a"})
    assert [record["image"] for record in second.records] == ["1.png"]
    second.add([objects.failure("3.png", "torn")])
    third = objects.PartialRecords(output, {"model": "a"})  # after another interruption
    assert third.records == second.records
    assert third.finish() == [output]
    names = [json.loads(line)["image"] for line in output.read_text().splitlines()]
    assert names == ["1.png", "3.png"]
    assert not file.exists()
    objects.PartialRecords(output, {"model": "a"}).add([objects.failure("1.png", "torn")])
    assert objects.PartialRecords(output, {"model": "b"}).records == []
