"""Groups of objects, pictures and the report."""

import html.parser
import json
import re

import handmade
import numpy as np
import pytest
from PIL import Image

import lavae_jax
from lavae_jax import groups, images, objects, pictures, report

# Left: pairs, at the top. Right: single pixels.
DRAWN = [
    handmade.picture((3, 4, True), (12, 15, False)),
    handmade.picture((5, 5, True), (8, 18, False), (16, 20, False)),
    handmade.picture(),
    handmade.picture((17, 20, False)),
]


@pytest.fixture(scope="module")
def records():
    model = handmade.model()
    return lavae_jax.analyse(model, np.stack(DRAWN), masks=True, appearances=True)


# --- groups ------------------------------------------------------------------


def test_objects_that_look_alike_are_in_one_group(records):
    singles, pairs = groups.find(records, 2)
    assert (singles.number, pairs.number) == (1, 2)
    assert (len(singles.members), len(pairs.members)) == (4, 2)
    for one in groups.assign(records, [singles, pairs]):
        for thing in one["objects"]:
            assert thing["group"] == thing["width"]
            assert "appearance" not in thing


def of_appearances(appearances):
    return [{"objects": [{"appearance": list(z)} for z in one]} for one in appearances]


def test_groups_are_deterministic_and_begin_with_their_middle():
    random = np.random.default_rng(0)
    middles = 10 * random.normal(size=(3, 4))
    true = random.integers(0, 3, 200)
    z = (middles[true] + random.normal(size=(200, 4))).round(4)
    made = of_appearances([z[:90], [], z[90:]])
    found = groups.find(made, 3)
    assert found == groups.find(json.loads(json.dumps(made)), 3)
    sizes = [len(group.members) for group in found]
    assert sizes == sorted(np.bincount(true), reverse=True)
    for group in found:
        index = [k + 90 * (i == 2) for i, k in group.members]
        assert len(set(true[index])) == 1
        middle = z[index].mean(0)
        distance = np.linalg.norm(z[index] - middle, axis=1)
        np.testing.assert_allclose(distance, np.sort(distance), atol=1e-6)
        typical = groups.typical_appearances(made, [group])
        np.testing.assert_allclose(typical[0], z[index[0]], rtol=1e-6)


def test_there_are_no_more_groups_than_different_objects():
    assert groups.find(of_appearances([[], []]), 4) == []
    (one,) = groups.find(of_appearances([[], [[1.0, 2.0]]]), 4)
    assert one == groups.Group(1, [(1, 0)])
    two = groups.find(of_appearances([[[1.0], [2.0], [1.0]]]), 4)
    assert [group.members for group in two] == [[(0, 0), (0, 2)], [(0, 1)]]


def test_of_many_objects_some_are_clustered_and_the_others_join_them(monkeypatch):
    monkeypatch.setattr(groups, "MOST_CLUSTERED", 10)
    z = np.tile([[0.0], [5.0], [9.0]], (31, 1))
    found = groups.find(of_appearances([z]), 3)
    assert sorted(len(group.members) for group in found) == [31, 31, 31]


# --- pictures ----------------------------------------------------------------


def extent(pixels):
    """First and last row and column of pixels [H, W] that are True."""
    rows, columns = np.nonzero(pixels)
    return rows.min(), rows.max(), columns.min(), columns.max()


def block(canvas, top, left, height, width):
    """The record of an image with one object, which is a rectangle."""
    labels = np.zeros(canvas, np.int32)
    labels[top : top + height, left : left + width] = 1
    thing = objects.Measured(0, 0, top, left, height, width, 1.0, None)
    record = objects.record("block", canvas, [thing], 0.0, None)
    (record["objects"][0]["mask"],) = pictures.masks.encode(labels, 1)
    return record


@pytest.mark.parametrize(
    ("canvas", "scale"), [((32, 64), 16), ((64, 32), 16), ((300, 600), 1), ((600, 300), 1)]
)
def test_an_overlay_has_an_outline_just_around_each_object_and_its_number_next_to_it(canvas, scale):
    height, width = 17, 6
    for top, left in ((14, 9), (1, canvas[1] - 12)):
        drawn = pictures.overlay(
            np.zeros(canvas, np.uint8), block(canvas, top, left, height, width)
        )
        assert drawn.size == (scale * canvas[1], scale * canvas[0])
        pixels = np.asarray(drawn)
        rim = max(1, scale // 3)
        box = (scale * top, scale * (top + height), scale * left, scale * (left + width))
        outline = (pixels == pictures.OUTLINE).all(-1)
        assert extent(outline) == (box[0] - rim, box[1] + rim - 1, box[2] - rim, box[3] + rim - 1)
        assert not outline[box[0] : box[1], box[2] : box[3]].any()
        red, green, blue = np.moveaxis(pixels, -1, 0)
        first, last, *_ = extent((red == green) & (red > blue))  # yellow, with soft edges
        assert last < box[0] or first >= box[1]


def test_dim_images_are_brightened_in_pictures():
    dim = np.array([[0, 1_000], [4_000, 2_000]], np.uint16)
    np.testing.assert_array_equal(pictures.to_rgb(dim)[..., 1], [[0, 64], [255, 128]])
    assert pictures.to_rgb(np.zeros((2, 2), np.uint8)).max() == 0


def test_crops_have_one_size_and_their_object_in_the_middle(records):
    members = [(i, k) for i, one in enumerate(records) for k in range(len(one["objects"]))]
    found = pictures.crops(np.stack(DRAWN), records, members)
    middle = found.side // 2
    for member in members:
        assert found.pixels[member].shape == (found.side, found.side, 3)
        assert found.pixels[member][middle, middle].max() == 255


# --- the report --------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a page is made of; elements must be closed in the order in which they were opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open += [] if tag in ("meta", "img") else [tag]

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def written(path, records, *more):
    report.write(path, "Pixels & <pairs>", records, list(DRAWN), *more)
    text = path.read_text()
    Page(text)
    return text


def test_the_report_needs_nothing_but_itself(records, tmp_path):
    found = groups.find(records, 2)
    sprites = handmade.model().decode(groups.typical_appearances(records, found))
    text = written(tmp_path / "a.html", groups.assign(records, found), found, sprites)
    assert "http" not in text
    assert "Pixels &amp; &lt;pairs&gt;" in text
    elements = Page(text).elements
    assert not {"script", "link", "iframe"} & {tag for tag, _ in elements}
    sources = [about["src"] for tag, about in elements if tag == "img"]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"url\(|@import", text)
    # Overlays of 4 images, 6 detections, and for each group its sprite and its members.
    assert len(sources) == 4 + 6 + (1 + 4) + (1 + 2)


def bars(text, unit):
    numbers = re.findall(rf"<title>([-0-9. to]+): ([0-9,]+) {unit}</title>", text)
    return {name: int(number.replace(",", "")) for name, number in numbers}


def test_the_bars_of_the_report_are_the_sizes_and_counts(records, tmp_path):
    """Areas of 1 and 2 pixels are those of circles with diameters of 1.128 and 1.596."""
    text = written(tmp_path / "a.html", records)
    assert bars(text, "images") == {"0": 1, "1": 1, "2": 1, "3": 1}
    sizes = bars(text, "objects")
    assert sorted(sizes.values()) == [2, 4]
    for name, number in sizes.items():
        low, high = map(float, name.split(" to "))
        assert low <= {4: 1.128, 2: 1.596}[number] <= high


def test_the_least_certain_images_come_first(records, tmp_path):
    changed = [{**one, "image": f"{k}.png"} for k, one in enumerate(records)]
    changed[2] = objects.failure("torn.png", "torn")
    changed[0]["unexplained"] = 0.5  # one of two objects more, about
    text = written(tmp_path / "a.html", changed)
    table = text[text.index("<table") :]
    order = [table.index(name) for name in ("0.png", "1.png", "3.png", "torn.png")]
    assert order == sorted(order)
    assert report.expected_errors(changed[0]) == pytest.approx(1, abs=0.1)
    missed = objects.record("a", (20, 24), [], 0.25, None)  # counts as one object
    assert report.expected_errors(missed) == 0.25


@pytest.mark.parametrize(
    "nothing", [[], [objects.record("a", (20, 24), [], None, None)], [objects.failure("a", "torn")]]
)
def test_a_report_of_nothing_says_so(nothing, tmp_path):
    assert "No objects were found." in written(tmp_path / "a.html", nothing)


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e5, 3.0], [0.1, 0.2], np.arange(300.0)])
@pytest.mark.parametrize("whole", [False, True])
def test_every_value_is_in_one_bar(values, whole):
    values = np.rint(values) if whole else np.array(values)
    text = report._histogram(values, "x", "objects", whole)
    shown = bars(text, "objects")
    assert sum(shown.values()) == len(values)
    assert "nan" not in text


# --- lavae infer -------------------------------------------------------------


def test_an_interrupted_run_ends_as_one_without_a_stop(launch, launch_all, tmp_path):
    """Its first attempt fails when the picture of groups is written, after all images; of what it
    saved, five of eight images are left."""
    run = handmade.write_run(tmp_path / "model", "")
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for k in range(8):
        image = handmade.picture((3 + k, 5, False), (8, 15, True))[..., 0]
        name = "deep/7.tif" if k == 7 else f"{k}.jpg" if k == 6 else f"{k}.png"
        Image.fromarray((255 * image).astype(np.uint8)).save(folder / name, quality=100)
    opened = images.open_images(str(folder))
    output, page = tmp_path / "objects.jsonl", tmp_path / "report.html"
    labels, overlays = tmp_path / "masks", tmp_path / "overlays"
    flags = [f"--checkpoint={run}", f"--images={folder}", f"--output={output}", "--groups=2"]
    flags += [f"--masks={labels}", f"--overlay={overlays}", f"--report={page}"]

    in_the_way = tmp_path / "objects_groups.png"
    in_the_way.mkdir()
    first = launch("infer.py", *flags)
    assert first.returncode == 1
    assert "objects_groups.png" in first.stderr
    unfinished = tmp_path / "objects.jsonl.unfinished"
    about, *lines = unfinished.read_text().splitlines(True)
    assert opened.fingerprint in about  # so that it is not resumed with other images
    saved = list(map(json.loads, lines))
    assert [record["count"] for record in saved] == [2] * 8
    in_the_way.rmdir()
    unfinished.write_text("".join([about, *lines[:5]]))
    (labels / "deep" / "7.tif").unlink()

    second = launch("infer.py", *flags)
    assert second.returncode == 0, second.stderr
    assert "resuming after 5 of 8 images" in second.stdout
    assert not unfinished.exists()
    expected = groups.assign(saved, groups.find(saved, 2))
    records = list(map(json.loads, output.read_text().splitlines()))
    assert records == expected
    assert {thing["group"] for record in records for thing in record["objects"]} == {1, 2}
    for name, record in zip(opened.names, records, strict=True):
        written = labels / (f"{name}.png" if name.endswith("jpg") else name)
        np.testing.assert_array_equal(images.read_image(written), objects.label_image(record))
        assert (overlays / f"{name}.png").exists()
    assert images.read_image(in_the_way).ndim == 3
    Page(page.read_text())

    alone = [flag for flag in flags if flag.startswith(("--checkpoint", "--images", "--groups"))]
    others = [f"--output={tmp_path / 'other'}{suffix}" for suffix in (".csv", ".json")]
    for result in launch_all(*(["infer.py", *alone, other] for other in others)):
        assert result.returncode == 0, result.stderr
    table = (tmp_path / "other.csv").read_text().splitlines()
    assert table[0].endswith("score,brightness,group")
    coco = json.loads((tmp_path / "other.json").read_text())
    assert coco["categories"] == [{"id": 1, "name": "group 1"}, {"id": 2, "name": "group 2"}]
    things = [thing for record in records for thing in record["objects"]]
    for annotation, thing in zip(coco["annotations"], things, strict=True):
        assert annotation["segmentation"] == thing["mask"]
        assert (annotation["area"], annotation["category_id"]) == (thing["area"], thing["group"])
