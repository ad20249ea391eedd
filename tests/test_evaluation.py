"""Metrics against hand-worked cases, brute force and independent code."""

import itertools

import handmade
import numpy as np
import pytest
from handmade import picture

from datasets import scenes
from lavae_jax import evaluation, figures
from lavae_jax.objective import Bound
from lavae_jax.scene import Scene
from lavae_jax.vae import Terms


def test_the_standard_error_of_the_bound_is_the_spread_over_the_root_of_the_number_of_images():
    """Of 1, 2, 4 and 9: the mean is 4, the mean square of what is left (9 + 4 + 0 + 25) / 4."""
    terms = Terms(log_likelihood=np.array([-1.0, 0, -3, -4]), kl=np.array([0.0, 2, 1, 5]))
    bound = Bound(np.array([-1.0, -2, -4, -9]), terms)
    assert evaluation.bound_scores(bound, entropy=1.5) == {
        "images": 4,
        "neg_bound": 4.0,
        "standard_error": pytest.approx((9.5 / 4) ** 0.5),
        "median": 3.0,
        "terms": {"kl": 2.0, "log_likelihood": -2.0},
        "entropy": 1.5,
        "gap_to_entropy": 2.5,
    }
    without = evaluation.bound_scores(bound, entropy=None)
    assert without["entropy"] is without["gap_to_entropy"] is None


def test_counts_are_scored():
    scores = evaluation.count_scores(np.array([0, 1, 2, 2, 4]), np.array([0, 1, 1, 2, 3]))
    assert scores["count_accuracy"] == pytest.approx(0.6)
    assert scores["overcounted"] == pytest.approx(0.4)
    assert scores["undercounted"] == 0
    assert scores["count_mean_absolute_error"] == pytest.approx(0.4)
    assert scores["count_confusion"] == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
    ]


def test_counting_too_many_is_told_from_counting_too_few():
    scores = evaluation.count_scores(np.array([0, 1, 3, 5]), np.array([2, 1, 4, 4]))
    assert scores["count_accuracy"] == 0.25
    assert scores["overcounted"] == 0.25
    assert scores["undercounted"] == 0.5
    assert scores["count_mean_absolute_error"] == 1  # of 2, 0, 1 and 1


def test_scenes_that_hide_an_object_are_left_out():
    """Those with more than three quarters of one; the first and the third are counted wrong."""
    hidden = np.array([[0.9, 0, -1], [0.75, 0.5, 0.2], [0.1, -1, -1], [0, 0, 0], [1, -1, -1]])
    args = np.array([1, 3, 2, 3, 1]), np.array([2, 3, 1, 3, 1])
    assert evaluation.visible_scores(*args, hidden) == {
        "mostly_hidden": pytest.approx(2 / 5),
        "count_accuracy_visible": pytest.approx(2 / 3),
    }
    assert evaluation.visible_scores(*args, np.ones((5, 1))) == {"mostly_hidden": 1.0}


@pytest.mark.parametrize(("n", "m"), [(3, 3), (2, 4), (4, 2), (0, 3)])
def test_matching_is_optimal(n, m):
    rng = np.random.default_rng(0)
    one, other = rng.uniform(size=(n, 2)), rng.uniform(size=(m, 2))
    i, j = evaluation.match(one, other)
    assert len(i) == min(n, m)
    small, large = (one, other) if n <= m else (other, one)
    best = min(
        np.linalg.norm(small - large[list(order)], axis=1).sum()
        for order in itertools.permutations(range(len(large)), len(small))
    )
    assert np.linalg.norm(one[i] - other[j], axis=1).sum() == pytest.approx(best)


def test_matching_within_a_tolerance_finds_the_most_pairs():
    """The nearest pair would leave the two others without partners."""
    one, other = np.array([[0.0, 0], [0, 3]]), np.array([[0.0, 2.5], [0, 6.9]])
    i, j = evaluation.match_within(one, other)
    assert sorted(zip(i.tolist(), j.tolist(), strict=True)) == [(0, 0), (1, 1)]
    i, j = evaluation.match_within(one, other, tolerance=3)
    assert (i.tolist(), j.tolist()) in [([0], [0]), ([1], [0])]
    assert all(len(index) == 0 for index in evaluation.match_within(one, other + 50))
    assert len(evaluation.match_within(one, np.array([[4.0, 0]]))[0]) == 1  # 4 is within 4


def test_as_many_as_possible_match_within_a_tolerance_even_if_their_distances_add_up_to_more():
    """Two pairs are 3.5 apart. Their sum, 7, is more than that of 0.5 and 4.6, of which one is
    near."""
    one, other = np.array([[0.0, 0], [0, 3]]), np.array([[0.0, 3.5], [3.5, 3]])
    assert evaluation.match(one, other)[1].tolist() == [1, 0]
    assert evaluation.match_within(one, other)[1].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_no_other_matching_within_a_tolerance_has_more_pairs(seed):
    rng = np.random.default_rng(seed)
    one, other = rng.uniform(0, 10, (4, 2)), rng.uniform(0, 10, (5, 2))
    near = np.linalg.norm(one[:, None] - other, axis=-1) <= 3
    most = max(
        near[range(4), order].sum() for order in map(list, itertools.permutations(range(5), 4))
    )
    assert len(evaluation.match_within(one, other, 3)[0]) == most


def test_recall_and_precision_are_of_all_objects_of_all_scenes():
    is_true = np.array([[True, False, False], [True, True, False], [False, False, False]])
    scores = evaluation.location_scores(is_true, np.array([2, 3, 0]), np.array([1, 2, 1]))
    assert scores == {"recall": 3 / 4, "precision": 3 / 5}
    nothing = evaluation.location_scores(is_true[2:], np.array([0]), np.array([4]))
    assert nothing == {"recall": 0.0}


def test_calibration_compares_claimed_probabilities_with_the_truth():
    """Two bins: of 0.2, 0.4 and 0.5 one is true, of 0.6 and 1 both are."""
    claimed, is_true = np.array([0.5, 1, 0.2, 0.6, 0.4]), np.array([True, True, False, True, False])
    result = evaluation.calibration(claimed, is_true, bins=2)
    assert result["objects"] == [3, 2]
    np.testing.assert_allclose(result["claimed"], [1.1 / 3, 0.8])
    np.testing.assert_allclose(result["true"], [1 / 3, 1])
    # (3 |1.1 / 3 - 1 / 3| + 2 |0.8 - 1|) / 5
    assert result["expected_calibration_error"] == pytest.approx(0.1)
    finer = evaluation.calibration(claimed, is_true)
    assert finer["objects"] == [0, 1, 0, 1, 1, 1, 0, 0, 0, 1]
    assert finer["claimed"][0] is finer["true"][0] is None
    nothing = evaluation.calibration(np.array([]), np.array([], bool))
    assert nothing["expected_calibration_error"] is None
    assert sum(nothing["objects"]) == 0


def test_probabilities_that_are_frequencies_are_calibrated():
    rng = np.random.default_rng(0)
    claimed = rng.uniform(size=50_000)
    is_true = rng.uniform(size=50_000) < claimed
    assert evaluation.calibration(claimed, is_true)["expected_calibration_error"] < 0.01
    too_sure = evaluation.calibration(np.sqrt(claimed), is_true)
    # E[sqrt(u) - u] = 2/3 - 1/2
    assert too_sure["expected_calibration_error"] == pytest.approx(1 / 6, abs=0.01)


def test_the_calibration_curve_passes_through_the_bins():
    result = evaluation.calibration(np.array([0.2, 0.3, 0.9]), np.array([False, True, True]), 2)
    figure = figures.calibration({"test": result, "empty": evaluation.calibration([], [])})
    diagonal, curve, empty = figure.axes[0].lines
    np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_allclose(curve.get_xydata(), [[0.25, 0.5], [0.9, 1]])
    assert curve.get_label() == "test: error 0.200"  # (2 * 0.25 + 0.1) / 3
    assert len(empty.get_xydata()) == 0


def mask_of(*objects, canvas=(20, 24)):
    mask = np.zeros(canvas, np.uint8)
    for k, (row, column, is_pair) in enumerate(objects, start=1):
        mask[row, column : column + 1 + is_pair] = k
    return mask


OBJECTS = [[(3, 4, True), (10, 12, True), (17, 20, False)], [(0, 0, True), (19, 22, False)], []]


def test_a_perfect_model_has_perfect_scores():
    """Although it calls the left pixel of a pair its location: centres are of mass."""
    model = handmade.model()
    scene = model.infer(np.stack([picture(*o) for o in OBJECTS]))
    masks = np.stack([mask_of(*o) for o in OBJECTS])
    scores = evaluation.object_scores(scene, np.asarray(model.sprites(scene)), masks)
    assert np.isfinite(scores["distance"]).sum(1).tolist() == [3, 2, 0]
    assert np.nanmax(scores["distance"]) < 1e-3
    np.testing.assert_allclose(scores["foreground_ari"], [1, 1, np.nan])  # an empty scene has none


def test_scores_reveal_a_lost_object_and_a_shift():
    model = handmade.model()
    scene = model.infer(np.stack([picture(*o) for o in OBJECTS]))
    masks = np.stack([mask_of(*o) for o in OBJECTS])
    shifted = scene.move(0, scene.location[:, 0] + np.array([0, 3])).remove(2)
    scores = evaluation.object_scores(shifted, np.asarray(model.sprites(shifted)), masks)
    assert np.isfinite(scores["distance"]).sum() == 4
    assert np.nanmax(scores["distance"]) == pytest.approx(3, abs=1e-3)
    assert scores["foreground_ari"][0] < 1


def test_the_centre_of_a_hidden_object_is_that_of_the_whole():
    """The second object, of rows 2 to 4, shows only its last row; without `centres`, that is it."""
    mask = np.zeros((1, 10, 10), np.uint8)
    mask[0, 2:4, 2:5], mask[0, 4, 2:5] = 1, 2
    centres = np.array([[[2.5, 3], [3, 3], [-1, -1]]], np.float32)
    found = [evaluation.Found(np.array([[3.0, 3], [2.5, 3]]), mask[0])]
    with_centres = evaluation.scores_of_found(found, mask, centres, slots=4)
    np.testing.assert_allclose(np.nansum(with_centres["distance"]), 0)
    assert with_centres["is_true"].tolist() == [[True, True, False, False]]
    assert with_centres["foreground_ari"] == [1.0]
    without = evaluation.scores_of_found(found, mask)
    assert np.nansum(without["distance"]) == pytest.approx(1)


def test_distances_of_centres_are_summed_up_by_percentiles():
    """Of 0, 1, 2 and 6: 95 % of the way from the first to the last is 0.85 of that from 2 to 6."""
    nan = np.nan
    distance = np.array([[6.0, nan, nan], [nan, nan, nan], [0.0, 2.0, 1.0]])
    ari = np.array([1.0, nan, 0.5])
    assert evaluation.centre_scores({"distance": distance, "foreground_ari": ari}) == {
        "centre_distance_median": 1.5,
        "centre_distance_95": pytest.approx(2 + 0.85 * 4),
        "centres_within_2_pixels": 0.75,  # 2 pixels are within 2
        "foreground_ari": 0.75,
    }
    nothing = {"distance": np.full((2, 3), nan), "foreground_ari": np.full(2, nan)}
    assert evaluation.centre_scores(nothing) == {}


def scene_of(*scenes, slots=6, canvas=(40, 40)):
    """Scenes of objects (row, column, appearance), the appearance two numbers."""
    made = Scene(
        np.zeros(len(scenes), np.int32),
        np.full((len(scenes), slots, 2), -1, np.int32),
        np.zeros((len(scenes), slots, 2), np.float32),
        canvas,
    )
    for b, objects in enumerate(scenes):
        made.count[b] = len(objects)
        for k, (row, column, appearance) in enumerate(objects):
            made.location[b, k], made.appearance[b, k] = (row, column), appearance
    return made


def test_a_missed_object_has_no_distance_and_its_pixels_belong_to_another():
    """Of two objects, both are found, or one, or none; or a third that is not there."""
    a, b, c = (10, 10, (0, 0)), (10, 20, (0, 0)), (30, 30, (0, 0))
    scene = scene_of([b, a], [b], [], [c, a, b])
    mask = np.zeros((4, 40, 40), np.uint8)
    mask[:, 9:12, 9:12], mask[:, 9:12, 19:22] = 1, 2
    scores = evaluation.object_scores(scene, np.ones((4, 6, 3, 3, 1)), mask)
    assert np.isfinite(scores["distance"]).sum(1).tolist() == [2, 1, 0, 2]
    np.testing.assert_allclose(np.nanmax(scores["distance"]), 0, atol=1e-6)
    np.testing.assert_allclose(scores["foreground_ari"], [1, 0, 0, 1], atol=1e-12)


def test_other_objects_are_lost_if_they_are_out_of_reach_before_or_after_an_edit():
    """Within 4 pixels is within reach, as the second object shows."""
    small, large = (0, 0), (2, 4)  # the spread of two each is 1 and 2, in the mean 1.5
    first = (20, 20, small)
    others = [(10, 10, large), (10, 30, small), (1, 1, small), (30, 30, large)]
    scene = scene_of([first, *others], [first, (10, 10, small)])
    before = scene_of([first, others[0], others[2], others[3]], [])
    after = scene_of(
        [
            first,
            (10, 14, large),  # moved by 4
            others[1],  # there now, but not before
            (4, 5, small),  # 5 away from where it was, where there is an empty slot's (-1, -1)
            (30, 30, (5, 8)),  # looks different: by 3 and 4
        ],
        [first, (10, 10, small)],  # nothing was there before
    )
    change = evaluation._change_of_others(scene, before, after)
    assert change == {
        "objects": 5,
        "lost": pytest.approx(3 / 5),
        "location_change_pixels": 2.0,  # of 4 and 0
        "location_unchanged": 0.5,
        "appearance_change_in_spreads": pytest.approx((0 + 12.5**0.5 / 1.5) / 2),
    }
    swapped = evaluation._change_of_others(scene[1:], after[1:], before[1:])
    assert (swapped["objects"], swapped["lost"]) == (1, 1.0)
    assert swapped["location_change_pixels"] is None


def test_the_farthest_location_is_far_from_all_objects_but_the_one_that_moves():
    """A sprite of 3 pixels fits into a canvas 3 pixels high around columns 1 to 9."""
    z = (0, 0)
    scene = scene_of(
        [(1, 9, z), (1, 1, z)],  # it is there already
        [(1, 1, z), (1, 9, z)],  # and an empty slot's (-1, -1) is near
        [(1, 5, z), (1, 1, z), (1, 9, z)],
        [(1, 9, z), (1, 2, z), (1, 5, z)],
        slots=4,
        canvas=(3, 11),
    )
    assert evaluation._farthest_location(scene, 3).tolist() == [[1, 9], [1, 1], [1, 5], [1, 9]]


def test_disentanglement_of_a_perfect_model_is_total():
    model = handmade.model()
    images = np.stack([picture(*o) for o in OBJECTS])
    report = evaluation.disentanglement(model, model.infer(images))
    assert report["scenes"] == 2
    for edit in ("move", "appearance"):
        change = report[edit]
        assert change["objects"] == 3
        assert change["lost"] == 0
        assert change["location_unchanged"] == 1
        assert change["location_change_pixels"] == 0
        assert change["appearance_change_in_spreads"] < 1e-3


def test_placed_sprites_agree_with_the_composer():
    bank = scenes.Bank(np.ones((1, 5, 5, 1), np.uint8), {})
    drawn = scenes.compose(scenes.stream(0), bank, 5, (2, 2), canvas=20, max_objects=2)
    for image, locations in zip(drawn.image, drawn.locations, strict=True):
        placed = evaluation.placed_sprites(locations, np.ones((2, 5, 5, 1)), (20, 20))
        np.testing.assert_array_equal(placed.sum(0), image[..., 0] / 255)


def test_masks_that_overlap_enough_are_hits():
    true = np.zeros((4, 10), int)
    true[:, :4], true[:, 6:] = 1, 5  # numbers may be left out
    assert evaluation.mask_precision(true, true) == 1
    assert evaluation.mask_precision(np.zeros_like(true), true) == 0
    assert evaluation.mask_precision(true * 0, true * 0) == 1
    found = np.zeros_like(true)
    found[:, :3] = 9  # 12 of 16 pixels of the first: 0.75
    assert evaluation.mask_precision(found, true, 0.75) == 1 / 2
    assert evaluation.mask_precision(found, true, 0.76) == 0 / 3
    found[:2, 3] = 2  # a further object, no hit
    assert evaluation.mask_precision(found, true, 0.5) == 1 / 3


def test_halves_of_a_mask_are_one_hit():
    true = np.ones((2, 4), int)
    found = np.repeat([[1, 1, 2, 2]], 2, axis=0)
    assert evaluation.mask_precision(found, true, 0.5) == 1 / 2
