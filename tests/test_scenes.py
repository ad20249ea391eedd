import itertools

import numpy as np
import pytest
import scipy.stats

from datasets import scenes

PLACERS = [scenes._place_by_rejection, scenes._place_by_chain]


def overlaps(corners, box):
    """Whether any two boxes of each layout share a pixel, by painting them."""
    painted = np.zeros((len(corners), corners.max() + box, corners.max() + box), int)
    for scene, layout in enumerate(corners):
        for row, column in layout:
            painted[scene, row : row + box, column : column + box] += 1
    return (painted > 1).any((1, 2))


def all_layouts(count, box, canvas):
    cells = list(itertools.product(range(canvas - box + 1), repeat=2))
    layouts = np.array(list(itertools.product(cells, repeat=count)))
    return layouts[~overlaps(layouts, box)]


def p_value_of_uniformity(observed, possible):
    index = {layout.tobytes(): i for i, layout in enumerate(possible.astype(np.int64))}
    counts = np.bincount([index[o.tobytes()] for o in observed], minlength=len(possible))
    return scipy.stats.chisquare(counts).pvalue


def layouts_apart(count, box, canvas, apart):
    """All ordered layouts in which any two corners differ by `apart` in rows or columns."""
    cells = list(itertools.product(range(canvas - box + 1), repeat=2))
    return np.array(
        [
            layout
            for layout in itertools.product(cells, repeat=count)
            if all(
                max(abs(a - c), abs(b - d)) >= apart
                for (a, b), (c, d) in itertools.combinations(layout, 2)
            )
        ]
    )


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize(
    ("count", "box", "canvas", "apart"), [(2, 2, 4, 1), (2, 3, 5, 2), (2, 2, 5, 3), (3, 2, 3, 1)]
)
def test_every_layout_with_corners_apart_is_equally_likely(placer, count, box, canvas, apart):
    possible = layouts_apart(count, box, canvas, apart)
    observed = placer(scenes.stream(0), 40 * len(possible), count, box, canvas, apart=apart)
    assert p_value_of_uniformity(observed, possible) > 1e-3


def test_boxes_anywhere_are_independent():
    possible = layouts_apart(2, 2, 4, 0)
    assert len(possible) == 9**2
    observed = scenes.place(scenes.stream(0), 4_000, 2, 2, 4, apart=0)
    assert p_value_of_uniformity(observed, possible) > 1e-3


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize(("count", "box", "canvas"), [(2, 2, 4), (2, 3, 6), (3, 2, 4)])
def test_every_layout_is_equally_likely(placer, count, box, canvas):
    possible = all_layouts(count, box, canvas)
    observed = placer(scenes.stream(0), 40 * len(possible), count, box, canvas)
    assert p_value_of_uniformity(observed, possible) > 1e-3


def test_uniformity_check_sees_sequential_placement():
    """The usual shortcut (each box uniform on what is still free) is not uniform."""
    possible = all_layouts(2, 2, 4)
    cells = np.array(list(itertools.product(range(3), repeat=2)))
    rng = np.random.default_rng(0)
    observed = []
    for _ in range(40 * len(possible)):
        first = cells[rng.integers(len(cells))]
        free = cells[(np.abs(cells - first) >= 2).any(1)]
        if len(free):
            observed.append(np.array([first, free[rng.integers(len(free))]]))
    assert p_value_of_uniformity(observed, possible) < 1e-6


def crowding(corners):
    """Statistics of layouts that differ when a chain has not been run long enough."""
    distance = np.abs(corners[:, :, None] - corners[:, None]).max(-1)
    nearest = np.sort(distance, axis=-1)[..., 1]
    from_centre = np.abs(corners - corners.max() / 2).max(-1)
    return np.stack([nearest.mean(1), distance.mean((1, 2)), from_centre.min(1)], axis=1)


def test_chain_agrees_with_rejection_on_seven_digits():
    chain = crowding(scenes._place_by_chain(scenes.stream("chain"), 1_500, 7, 15, 64))
    exact = crowding(scenes._place_by_rejection(scenes.stream("exact"), 1_500, 7, 15, 64))
    error = np.sqrt(chain.var(0) / len(chain) + exact.var(0) / len(exact))
    assert (np.abs(chain.mean(0) - exact.mean(0)) < 3.5 * error).all()


def test_chain_has_forgotten_its_start_on_seven_dsprites():
    """Twice the length changes nothing; an untouched start is seen at once."""

    def run(sweeps):
        return crowding(scenes._place_by_chain(scenes.stream(sweeps), 1_000, 7, 19, 64, sweeps))

    start, default, long = run(0), run(scenes._SWEEPS), run(2 * scenes._SWEEPS)
    error = np.sqrt(default.var(0) / len(default) + long.var(0) / len(long))
    assert (np.abs(default.mean(0) - long.mean(0)) < 3.5 * error).all()
    assert (np.abs(start.mean(0) - long.mean(0)) > 10 * error).any()


@pytest.mark.parametrize(
    ("count", "box", "canvas"), [(3, 15, 64), (7, 19, 64), (9, 3, 9), (1, 5, 5)]
)
def test_boxes_lie_inside_the_canvas_without_overlap(count, box, canvas):
    corners = scenes.place(scenes.stream(1), 50, count, box, canvas)
    assert corners.shape == (50, count, 2)
    assert corners.min() >= 0
    assert corners.max() <= canvas - box
    assert not overlaps(corners, box).any()


def test_too_many_boxes_are_refused():
    with pytest.raises(ValueError, match="at most 9"):
        scenes.place(scenes.stream(0), 1, 10, 19, 64)


def test_integers_are_uniform():
    draws = scenes.integers(scenes.stream(7), 10, (5_000,))
    assert scipy.stats.chisquare(np.bincount(draws, minlength=10)).pvalue > 1e-3


@pytest.fixture
def bank():
    sprites = np.ones((4, 3, 3, 2), np.uint8)
    sprites[:, 0, 0] = 0  # a corner that belongs to the background
    sprites[1, ..., 1] = 0
    return scenes.Bank(sprites, {"kind": np.arange(4, dtype=np.int32)})


def test_a_scene_is_the_union_of_its_sprites(bank):
    drawn = scenes.compose(scenes.stream(0), bank, 300, (0, 4), canvas=12, max_objects=6)
    for image, mask, count, locations, objects, *_ in zip(*drawn, strict=True):
        expected_image = np.zeros((12, 12, 2), np.uint8)
        expected_mask = np.zeros((12, 12), np.uint8)
        for k in range(count):
            row, column = locations[k] - 1  # a box of 3 has its centre at 1
            sprite = bank.sprites[objects[k]]
            expected_image[row : row + 3, column : column + 3] += 255 * sprite
            expected_mask[row : row + 3, column : column + 3] += np.uint8(k + 1) * sprite.any(-1)
        np.testing.assert_array_equal(image, expected_image)
        np.testing.assert_array_equal(mask, expected_mask)
        assert (locations[count:] == -1).all()
        assert (objects[count:] == -1).all()


@pytest.mark.parametrize("occlude", [False, True])
def test_the_truth_of_overlapping_objects(bank, occlude):
    """Painted pixel by pixel. Of objects whose order does not show, all are hidden."""
    args = (scenes.stream(0), bank, 200, (0, 4), 7, 5)
    drawn = scenes.compose(*args, apart=0, occlude=occlude)
    assert (drawn.hidden == 1).any()
    for image, mask, count, locations, objects, centres, hidden in zip(*drawn, strict=True):
        painted = np.zeros((7, 7, 2), np.uint8)
        owners = [[[] for _ in range(7)] for _ in range(7)]
        pixels = [[] for _ in range(count)]
        for k in range(count):
            for i, j in itertools.product(range(3), repeat=2):
                row, column = locations[k] + [i - 1, j - 1]
                if (colour := bank.sprites[objects[k], i, j]).any():
                    painted[row, column] = 255 * colour
                    owners[row][column].append(k)
                    pixels[k].append((row, column))
        np.testing.assert_array_equal(image, painted)
        last = [[(o[-1] + 1 if o else 0) for o in row] for row in owners]
        np.testing.assert_array_equal(mask, last)
        for k in range(count):
            others = [
                owners[r][c][-1] != k if occlude else len(owners[r][c]) > 1 for r, c in pixels[k]
            ]
            assert hidden[k] == pytest.approx(np.mean(others))
            np.testing.assert_allclose(centres[k], np.mean(pixels[k], 0), rtol=1e-6)
        assert (centres[count:] == -1).all()
        assert (hidden[count:] == -1).all()


def test_counts_and_sprites_are_equally_likely(bank):
    drawn = scenes.compose(scenes.stream(0), bank, 4_000, (0, 3), canvas=12, max_objects=3)
    assert scipy.stats.chisquare(np.bincount(drawn.count, minlength=4)).pvalue > 1e-3
    assert scipy.stats.chisquare(np.bincount(drawn.objects[drawn.objects >= 0])).pvalue > 1e-3
