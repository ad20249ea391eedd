"""A report on the objects in images, as one HTML file.

    records = lavae_jax.analyse(model, images, masks=True)
    report.write(pathlib.Path("report.html"), "My images", records, images)

The file is self-contained.
"""

import base64
import html
import io
import math
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from lavae_jax import pictures
from lavae_jax.groups import Group
from lavae_jax.images import Images
from lavae_jax.objects import Record

DETECTIONS = 96  # tiles of the montage
TILE = 72  # pixels of a tile
OVERLAYS, OVERLAY = 8, 1024  # images with outlines, and their longer side in pixels
BINS, FEWEST_BINS = 24, 10  # of a histogram, approximately
CHART = (520, 210)  # width and height
LEFT, BOTTOM, TOP = 44, 42, 14  # pixels between a chart's border and its bars


def write(
    path: pathlib.Path,
    title: str,
    records: Sequence[Record],
    images: Images | Sequence[np.ndarray],
    groups: Sequence[Group] = (),
    sprites: np.ndarray | Sequence[np.ndarray] = (),
    subtitle: str = "",
) -> None:
    """Writes a report: sizes, counts, the least certain images, detections and groups.

    Args:
        path: the file to write.
        title: the title of the page.
        records: records of the images, whose objects have masks.
        images: raw images; those that are shown are read again.
        groups: groups of objects that look alike, if they were grouped.
        sprites: [n, h, w, C], one for each group.
        subtitle: the text below the title.
    """
    by_score = _by_score(records)
    even = np.linspace(0, len(by_score) - 1, min(DETECTIONS, len(by_score)))
    chosen = [by_score[k] for k in even.round().astype(int)]
    in_groups = [member for group in groups for member in pictures.shown(group)]
    found = pictures.crops(images, records, [*chosen, *in_groups])
    order = sorted(
        (i for i, one in enumerate(records) if not one["error"]),
        key=lambda i: (-expected_errors(records[i]), i),
    )
    sections = [
        _numbers(records),
        f'<div class="pair">{_sizes(records)}{_counts(records)}</div>',
        _least_certain(order, records, images),
        _detections(chosen, records, found),
        _groups(groups, sprites, found) if groups else "",
        _table(order, records),
    ]
    head = f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    header = f"<h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p>"
    body = f"<header>{header}</header><main>{''.join(sections)}</main>"
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{head}</head><body>{body}</body></html>\n"
    )


def expected_errors(record: Record) -> float:
    """Estimates how many objects of an image are false, and how many were missed.

    Missed objects are estimated as the share of the foreground that no object explains, times the
    number of objects.

    Args:
        record: the record of an image.

    Returns:
        The expected number of false objects (the sum of 1 - score), plus that of missed ones.
    """
    wrong = sum(1 - thing["score"] for thing in record["objects"])
    return wrong + (record["unexplained"] or 0) * max(record["count"], 1)


def _by_score(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Pairs of indices, of an image and of an object in it, the most probable object first."""
    members = [(i, k) for i, one in enumerate(records) for k in range(len(one["objects"]))]
    return sorted(members, key=lambda at: -records[at[0]]["objects"][at[1]]["score"])


# --- sections ----------------------------------------------------------------


def _section(title: str, note: str, content: str, anchor: str) -> str:
    note = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{anchor}"><h2>{title}</h2>{note}{content}</section>'


def _numbers(records: Sequence[Record]) -> str:
    """The results in a few numbers."""
    good = [one for one in records if not one["error"]]
    things = [thing for one in good for thing in one["objects"]]
    counts = [one["count"] for one in good]
    numbers = [
        (f"{len(good):,}", "image" if len(good) == 1 else "images"),
        (f"{len(things):,}", "object" if len(things) == 1 else "objects"),
    ]
    if len(good) > 1:
        numbers.append((f"{np.mean(counts):.1f}", "objects in an image (mean)"))
    if things:
        numbers.append((f"{np.median(_diameters(things)):.1f} px", "diameter (median)"))
    if empty := counts.count(0):
        numbers.append((f"{empty:,}", "without objects"))
    if failed := len(records) - len(good):
        numbers.append((f"{failed:,}", "could not be read"))
    items = (f"<div><b>{value}</b><span>{name}</span></div>" for value, name in numbers)
    return f'<div class="numbers">{"".join(items)}</div>'


def _diameters(things: Sequence[dict]) -> np.ndarray:
    """Diameters of circles with the areas of objects; objects without a pixel are left out."""
    area = np.array([thing["area"] for thing in things if thing["area"]], float)
    return 2 * np.sqrt(area / math.pi)


def _sizes(records: Sequence[Record]) -> str:
    diameters = _diameters([thing for one in records for thing in one["objects"]])
    if not len(diameters):
        return ""
    note = "The diameter of a circle with the area of the object's mask."
    chart = _histogram(diameters, "diameter in pixels", "objects")
    return _section("Sizes", note, chart, "sizes")


def _counts(records: Sequence[Record]) -> str:
    counts = np.array([one["count"] for one in records if not one["error"]])
    if len(counts) < 2:
        return ""
    chart = _histogram(counts, "objects in an image", "images", whole=True)
    return _section("Counts", "The number of objects in an image.", chart, "counts")


def _least_certain(
    order: Sequence[int], records: Sequence[Record], images: Images | Sequence[np.ndarray]
) -> str:
    note = (
        "The images with the most expected errors, estimated in two parts: the sum of the "
        "probabilities that a detection is not an object; and the number of objects times the "
        "unexplained share of the foreground."
    )
    figures = []
    for i in order[:OVERLAYS]:
        one = records[i]
        scale = OVERLAY / max(one["height"], one["width"])
        scale = max(int(scale), min(scale, 1))
        picture = pictures.outlined(np.asarray(images[i]), one, scale)
        unexplained = one["unexplained"]
        facts = [_plural(one["count"], "object"), f"{expected_errors(one):.2f} expected errors"]
        facts += [] if unexplained is None else [f"{unexplained:.1%} unexplained"]
        name = html.escape(one["image"])
        figures.append(
            f"<figure>{_image(picture, name)}<figcaption><b>{name}</b>"
            f"<span>{' · '.join(facts)}</span></figcaption></figure>"
        )
    if not figures:
        return ""
    content = f'<div class="overlays">{"".join(figures)}</div>'
    return _section("Least certain images", note, content, "uncertain")


def _detections(
    chosen: Sequence[tuple[int, int]], records: Sequence[Record], found: pictures.Crops
) -> str:
    if not chosen:
        return _section("Detections", "No objects were found.", "", "detections")
    total = sum(len(one["objects"]) for one in records)
    which = f"{len(chosen)} of {total:,} objects" if len(chosen) < total else "All objects"
    note = (
        f"{which}, from the most to the least probable, in squares of {found.side} pixels, with "
        "their probabilities."
    )
    tiles = []
    for i, k in chosen:
        score = records[i]["objects"][k]["score"]
        where = html.escape(f"{records[i]['image']}, object {k}")
        picture = _image(pictures.tile(found.pixels[i, k], TILE), where)
        tiles.append(f"<figure>{picture}<figcaption>{_percent(score)}</figcaption></figure>")
    return _section("Detections", note, f'<div class="tiles">{"".join(tiles)}</div>', "detections")


def _groups(
    groups: Sequence[Group], sprites: Sequence[np.ndarray] | np.ndarray, found: pictures.Crops
) -> str:
    total = sum(len(group.members) for group in groups)
    note = (
        f"{_plural(total, 'object')} in {_plural(len(groups), 'group')} by appearance. Framed: the "
        "sprite of the most typical object. Next to it: objects of the group, from the most to the "
        "least typical."
    )
    cards = []
    for group, sprite in zip(groups, sprites, strict=True):
        size = len(group.members)
        sprite = pictures.tile(pictures.to_rgb(np.clip(sprite, 0, 1)), TILE)
        tiles = [_image(sprite, f"sprite of group {group.number}", "sprite")]
        for member in pictures.shown(group):
            tiles.append(_image(pictures.tile(found.pixels[member], TILE), ""))
        cards.append(
            f'<div class="group"><h3>{group.number}<span>{_plural(size, "object")}, '
            f"{size / total:.1%}</span></h3><div>{''.join(tiles)}</div></div>"
        )
    return _section("Groups", note, f'<div class="groups">{"".join(cards)}</div>', "groups")


def _table(order: Sequence[int], records: Sequence[Record]) -> str:
    rows = []
    for i in order:
        one = records[i]
        unexplained = "–" if one["unexplained"] is None else f"{one['unexplained']:.1%}"
        values = f"{one['count']:,}", f"{expected_errors(one):.2f}", unexplained
        cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(f'<tr><th scope="row">{html.escape(one["image"])}</th>{cells}</tr>')
    for one in records:
        if one["error"]:
            name, error = html.escape(one["image"]), html.escape(one["error"])
            rows.append(f'<tr><th scope="row">{name}</th><td colspan="3">{error}</td></tr>')
    names = ("image", "objects", "expected errors", "unexplained foreground")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return _section(
        "Images", "The least certain first.", f'<div class="scroll">{table}</div>', "images"
    )


# --- parts -------------------------------------------------------------------


def _image(picture: Image.Image, description: str, kind: str = "") -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    content = base64.b64encode(file.getvalue()).decode()
    kind = f' class="{kind}"' if kind else ""
    about = f'alt="{description}" title="{description}"'
    return f'<img{kind} {about} width="{picture.width}" src="data:image/png;base64,{content}">'


def _histogram(values: np.ndarray, name: str, unit: str, whole: bool = False) -> str:
    """Bars as SVG. Each whole number is in the middle of its bar."""
    low, high = float(np.min(values)), float(np.max(values))
    step = _nice(max((high - low) / BINS, high / 100), whole)
    first, last = math.floor(low / step), math.floor(high / step)
    around = max(FEWEST_BINS - (last - first), 0) // 2  # so that a few bars do not fill the chart
    first, last = max(first - around, 0), last + around
    edges = step * np.arange(first, last + 2) - (0.5 if whole else 0)
    heights, _ = np.histogram(values, edges)
    width, height = CHART
    bottom, right = height - BOTTOM, width - 8
    per_bar, highest = (right - LEFT) / len(heights), max(heights.max(), 1)

    def x(value: float) -> float:
        return LEFT + (value - edges[0]) / step * per_bar

    def y(number: float) -> float:
        return bottom - number / highest * (bottom - TOP)

    parts = []
    for number in _ticks(0, highest, 5, whole=True):
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y(number):.1f}" y2="{y(number):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(number) + 4:.1f}" class="end">{number:,g}</text>')
    for edge, number in zip(edges, heights, strict=False):
        if number:
            left, top = x(edge) + 0.5, y(number)
            values_of = (
                (math.ceil(edge), math.ceil(edge) + step - 1) if whole else (edge, edge + step)
            )
            label = " to ".join(dict.fromkeys(f"{value:g}" for value in values_of))
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(per_bar - 1, 0.5):.1f}" '
                f'height="{bottom - top:.1f}"><title>{label}: {number:,} {unit}</title></rect>'
            )
    for value in _ticks(edges[0], edges[-1], 8, whole):
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 16}" class="mid">{value:g}</text>')
    parts.append(
        f'<text x="{(LEFT + right) / 2:.1f}" y="{height - 6}" class="mid name">{name}</text>'
    )
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


def _nice(step: float, whole: bool) -> float:
    """The least of 1, 2 and 5 times a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(max(step, 0.05)))
    nice = next(k * power for k in (1, 2, 5, 10) if k * power >= step * (1 - 1e-9))
    return max(nice, 1.0) if whole else nice


def _ticks(low: float, high: float, number: int, whole: bool) -> Iterable[float]:
    step = _nice((high - low) / number, whole)
    return step * np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _percent(score: float) -> str:
    """A percentage, rounded down: 100 % only if it is exact."""
    return f"{math.floor(1000 * score) / 10:.1f}%"


STYLE = """
:root { color-scheme: light dark; --back: #f6f5f2; --panel: #fff; --ink: #1d1d1f; --faint: #6b6b70;
  --line: #e3e1db; --accent: #b85c00; }
@media (prefers-color-scheme: dark) { :root { --back: #141416; --panel: #1e1e21; --ink: #ececee;
  --faint: #a0a0a8; --line: #38383d; --accent: #ff9a1f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
header, main { max-width: 72rem; margin: 0 auto; padding: 0 1.2rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--faint); overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
h3 span { font-weight: 400; color: var(--faint); margin-left: .6rem; font-size: .85rem; }
main { display: grid; gap: 1rem; padding-top: 1rem; padding-bottom: 3rem; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: .8rem;
  padding: 1.1rem 1.2rem; min-width: 0; }
.note { color: var(--faint); font-size: .88rem; margin: .2rem 0 .9rem; max-width: 60rem; }
.numbers { display: flex; flex-wrap: wrap; gap: .6rem 2.6rem; padding: .2rem 0 .6rem; }
.numbers div { display: grid; }
.numbers b { font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.numbers span, figcaption { color: var(--faint); font-size: .85rem; }
.pair { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
svg { width: 100%; max-width: 36rem; display: block; font-size: 12px; }
svg line { stroke: var(--line); } svg rect { fill: var(--accent); } svg text { fill: var(--faint); }
svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
figure { margin: 0; }
img { display: block; border-radius: .3rem; box-shadow: 0 0 0 1px var(--line); }
.overlays { display: grid; gap: 1.2rem 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
.overlays img { width: 100%; height: auto; }
.overlays figcaption { display: grid; margin-top: .35rem; overflow-wrap: anywhere; }
.overlays b { color: var(--ink); font-weight: 600; }
.tiles { display: grid; gap: .6rem .45rem; justify-content: start;
  grid-template-columns: repeat(auto-fill, 72px); }
.tiles figcaption { text-align: center; font-size: .75rem; font-variant-numeric: tabular-nums; }
.groups { display: grid; gap: 1.1rem 1.4rem;
  grid-template-columns: repeat(auto-fill, minmax(min(31rem, 100%), 1fr)); }
.group div { display: flex; flex-wrap: wrap; gap: .4rem; }
.group img { width: 60px; }
.group .sprite { outline: 2px solid var(--accent); margin-right: .3rem; }
.scroll { max-height: 30rem; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; } tbody th { font-weight: 400; overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: var(--panel); color: var(--faint); }
td[colspan] { text-align: left; color: var(--faint); }
@media print { section { break-inside: avoid; } .scroll { max-height: none; } }
"""
