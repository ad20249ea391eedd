import copy
import json

import pytest
from conftest import ROOT

from lavae_jax import table

LAVAE = {
    "checkpoint": "runs/mnist1k-cpu",
    "name": "mnist1k",
    "recipe": "cpu",
    "kind": "lavae",
    "dataset": "multi_mnist/1k",
    "overrides": "",
    "seed": 0,
    "num_samples": 100,
    "support": "peaks",
    "splits": {
        "test": {"images": 10_000, "neg_bound": 36.0, "count_accuracy": 1.0},
        "test_7": {"images": 10_000, "neg_bound": 190.0, "count_accuracy": 0.995},
    },
}
BASELINE = {
    **LAVAE,
    "kind": "baseline",
    "support": None,
    "splits": {"test": {"images": 10_000, "neg_bound": 77.0}},
}


def changed(base=LAVAE, *, test=None, test_7=None, **fields):
    """A result with other fields, and other numbers of its splits."""
    found = copy.deepcopy({**base, **fields})
    for split, scores in (("test", test), ("test_7", test_7)):
        if scores:
            found["splits"][split] |= scores
    return found


def make(*found):
    """The table of results in files a.json, b.json, ..."""
    files = [f"{letter}.json" for letter in "abcdef"[: len(found)]]
    texts = map(json.dumps, found)
    return table.make_table([table.parse(f, t) for f, t in zip(files, texts, strict=True)])


def rows_of(made, title):
    return [row for row in made.rows if row[0].split(" [")[0] == title]


def refusal(*found):
    with pytest.raises(table.TableError) as caught:
        make(*found)
    return str(caught.value)


# --- the paper's rows ---------------------------------------------------------


def test_shipped_results_give_the_table_in_readme():
    files = sorted(str(path) for path in ROOT.glob("lavae_jax/weights/*/results*.json"))
    written = table.format_files(files, "markdown").splitlines()
    readme = (ROOT / "README.md").read_text().splitlines()
    start = readme.index(written[0])
    assert readme[start : start + len(written)] == written
    assert not readme[start + len(written)].startswith("|")


def test_without_results_of_ours_a_row_has_the_paper_s_numbers_alone():
    made = make(BASELINE)
    assert [row[:2] for row in made.rows] == [
        ["multi-MNIST-1k", "LAVAE"],
        ["multi-MNIST-1k", "baseline"],
        ["multi-MNIST-10k", "LAVAE"],
        ["multi-MNIST-10k", "baseline"],
        ["multi-dSprites", "LAVAE"],
        ["multi-dSprites", "baseline"],
    ]
    assert made.rows[0][2:] == ["", "42.2 ± 1.1", "", ">= 99.9%", ""]
    assert made.rows[1][2:] == ["77.0", "51.6 ± 0.6", "", "", "1"]
    assert made.notes == []


def test_a_row_is_the_mean_and_standard_deviation_over_seeds():
    made = make(
        changed(seed=0, test={"neg_bound": 30.0}, test_7={"count_accuracy": 0.991}),
        changed(seed=1, test={"neg_bound": 32.0}, test_7={"count_accuracy": 0.993}),
        changed(seed=2, test={"neg_bound": 37.0, "count_accuracy": 0.9997}),
    )
    # Mean (30 + 32 + 37) / 3 = 33, variance (9 + 1 + 16) / 2 = 13, 13 ** 0.5 = 3.61.
    ours = ["33.0 ± 3.6", "42.2 ± 1.1", "99.99% / 99.30%", ">= 99.9%", "3 of 3"]
    assert made.rows[0] == ["multi-MNIST-1k", "LAVAE", *ours]


def test_a_seed_succeeds_if_it_reaches_the_paper_s_accuracy_and_99_percent_on_test_7():
    good = changed(seed=0, test={"count_accuracy": 0.999}, test_7={"count_accuracy": 0.99})
    bad = changed(seed=1, test={"count_accuracy": 0.9989})
    bad_in_crowds = changed(seed=2, test_7={"count_accuracy": 0.9899})
    assert make(good, bad, bad_in_crowds).rows[0][6] == "1 of 3"


def test_accuracy_on_test_comes_first_whatever_the_order_in_the_file():
    found = changed()
    found["splits"] = {
        "train": {"images": 50, "neg_bound": 1.0, "count_accuracy": 0.5},
        **dict(reversed(found["splits"].items())),
    }
    assert make(found).rows[0][4] == "100.00% / 99.50%"
    assert table.crowded(["test_10", "train", "test", "test_7"]) == ["test_7", "test_10"]


def test_success_is_not_judged_without_the_crowded_split():
    found = changed()
    del found["splits"]["test_7"]
    assert make(found).rows[0][2:] == ["36.0", "42.2 ± 1.1", "100.00% / -", ">= 99.9%", "1"]


@pytest.mark.parametrize(
    ("name", "title"),
    [("multi_mnist", "multi-MNIST-1k"), ("multi_dsprites/default", "multi-dSprites")],
)
def test_aliases_of_data_sets_are_resolved(name, title):
    made = make(changed(dataset=name))
    assert len(made.rows) == 6
    assert rows_of(made, title)[0][2] == "36.0"


# --- what is not comparable ---------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"overrides": "canvas=96,max_count=5"}, "data with canvas=96,max_count=5"),
        ({"test": {"images": 200}}, "scenes of test: 200 instead of 10,000"),
        ({"test_7": {"images": 1_500}}, "scenes of test_7: 1,500 instead of 10,000"),
        ({"num_samples": 10}, "importance samples: 10 instead of 100"),
        (
            {"overrides": "canvas=96", "num_samples": 1},
            "data with canvas=96; importance samples: 1 instead of 100",
        ),
    ],
)
def test_what_is_not_measured_as_in_the_paper_has_a_marked_row_without_its_numbers(changes, note):
    made = make(changed(**changes))
    papers, ours = rows_of(made, "multi-MNIST-1k")[:2]
    assert papers == ["multi-MNIST-1k", "LAVAE", "", "42.2 ± 1.1", "", ">= 99.9%", ""]
    assert ours == ["multi-MNIST-1k [1]", "LAVAE", "36.0", "", "100.00% / 99.50%", "", "1"]
    assert made.notes == [f"not comparable with the paper: {note}"]


def test_marked_rows_come_after_the_comparable_one_and_share_notes():
    fewer = {"num_samples": 10}
    made = make(
        changed(overrides="canvas=96", test={"neg_bound": 50.0}),
        changed(BASELINE, **fewer),
        changed(),
        changed(dataset="multi_dsprites", **fewer),
    )
    assert [row[0] for row in made.rows if row[2]] == [
        "multi-MNIST-1k",
        "multi-MNIST-1k [1]",
        "multi-MNIST-1k [2]",
        "multi-dSprites [2]",
    ]
    assert len(made.notes) == 2


def test_changes_to_the_data_are_the_same_in_any_order():
    made = make(
        changed(seed=0, overrides="canvas=96,max_count=5"),
        changed(seed=1, overrides="max_count=5,canvas=96"),
    )
    assert [row[6] for row in made.rows if row[2]] == ["2"]


def test_a_data_set_that_is_not_in_the_paper_has_a_row_without_its_numbers():
    made = make(changed(dataset="letters"), changed(BASELINE, dataset="letters"))
    assert len(made.rows) == 8
    assert made.rows[6] == ["letters", "LAVAE", "36.0", "", "100.00% / 99.50%", "", "1"]
    assert made.rows[7] == ["letters", "baseline", "77.0", "", "", "", "1"]
    assert made.notes == []


def test_recipes_have_a_row_each_and_are_named_if_there_are_several():
    made = make(changed(), changed(recipe="paper", test={"neg_bound": 40.0}), BASELINE)
    assert [row[1:4] for row in rows_of(made, "multi-MNIST-1k")] == [
        ["LAVAE (cpu)", "36.0", "42.2 ± 1.1"],
        ["LAVAE (paper)", "40.0", "42.2 ± 1.1"],
        ["baseline", "77.0", "51.6 ± 0.6"],
    ]
    assert rows_of(made, "multi-dSprites")[0][1] == "LAVAE"


def test_a_learned_prior_has_a_row_of_its_own_without_the_paper_s_numbers():
    learnt = {"recipe": "mixture", "prior": "mixture of 3,000"}
    made = make(
        changed(seed=0, test={"neg_bound": 26.0}, **learnt),
        changed(seed=1, test={"neg_bound": 28.0}, **learnt),
        changed(prior="normal"),
        changed(BASELINE, prior=None),
    )
    assert [row[1:4] for row in rows_of(made, "multi-MNIST-1k")] == [
        ["LAVAE", "36.0", "42.2 ± 1.1"],
        ["LAVAE, mixture of 3,000", "27.0 ± 1.4", ""],
        ["baseline", "77.0", "51.6 ± 0.6"],
    ]
    alone = make(changed(**learnt))
    assert [row[2:4] for row in alone.rows[:2]] == [["", "42.2 ± 1.1"], ["36.0", ""]]


# --- what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"num_samples": 10}, "num_samples (100 and 10)"),
        ({"support": "pixels"}, "support (peaks and pixels)"),
        (
            {"test": {"images": 200}},
            "images (10,000 of test, 10,000 of test_7 and 200 of test, 10,000 of test_7)",
        ),
    ],
)
def test_results_of_one_row_must_be_measured_alike(changes, difference):
    message = refusal(changed(), changed(seed=1, **changes))
    assert f"a.json and b.json differ in {difference}" in message
    assert "both are of lavae by recipe cpu on multi_mnist/1k" in message


def test_a_split_that_the_table_does_not_show_may_differ_among_seeds():
    more = changed(BASELINE, seed=1)
    more["splits"]["test_7"] = {"images": 200, "neg_bound": 300.0}
    assert rows_of(make(BASELINE, more), "multi-MNIST-1k")[1][6] == "2"


def test_the_same_seed_twice_is_refused():
    message = refusal(changed(seed=3), changed(seed=4), changed(seed=3))
    assert "a.json and c.json have the same seed (seed 3 of lavae" in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("weights", "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        ("{}", "it has no dataset"),
        (json.dumps(changed(seed="0")), "its seed is '0'"),
        (json.dumps(changed(splits={"test": 3})), "its test is 3"),
    ],
)
def test_a_file_that_is_no_result_is_refused(text, reason):
    with pytest.raises(table.TableError) as caught:
        table.parse("x.json", text)
    assert str(caught.value) == f"x.json is not a result of launch/evaluate.py: {reason}"


@pytest.mark.parametrize("field", table.FIELDS)
def test_every_field_of_a_result_is_needed(field):
    found = changed()
    del found[field]
    assert f"it has no {field}" in refusal(found)


def test_a_result_without_test_is_refused():
    found = changed()
    del found["splits"]["test"]
    assert "a.json has no results of the split `test`" in refusal(found)


def test_an_unknown_kind_of_model_is_refused():
    message = "kind 'gan'; expected one of lavae, baseline, classical"
    assert message in refusal(changed(kind="gan"))


def test_a_classical_method_has_a_row_without_a_likelihood():
    scores = {"images": 1_000, "count_accuracy": 0.97}
    method = {
        **LAVAE,
        "kind": "classical",
        "recipe": "connected-components",
        "dataset": "multi_dsprites/anywhere",
        "support": None,
        "num_samples": 0,
        "splits": {"test": scores, "test_7": {**scores, "count_accuracy": 0.5}},
    }
    made = make(method, changed(dataset="multi_dsprites/anywhere"))
    note = "scenes of test: 1,000 instead of 10,000; scenes of test_7: 1,000 instead of 10,000"
    assert made.notes == [f"not comparable with the paper: {note}"]
    title = "multi-dSprites, anywhere"
    assert rows_of(made, title) == [
        [title, "LAVAE", "36.0", "", "100.00% / 99.50%", "", "1"],
        [f"{title} [1]", "connected components", "", "", "97.00% / 50.00%", "", ""],
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "36"])
@pytest.mark.parametrize("name", ["neg_bound", "images", "count_accuracy"])
def test_results_must_be_finite_numbers(name, value):
    message = refusal(changed(test={name: value}))
    assert f"a.json: {name} of test is {value!r}, not a finite number" in message


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(table.TableError, match=r"missing\.json cannot be read: No such file"):
        table.format_files([str(tmp_path / "missing.json")])
    with pytest.raises(table.TableError, match="cannot be read: Is a directory"):
        table.format_files([str(tmp_path)])
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(table.TableError, match="it is not text"):
        table.format_files([str(tmp_path / "picture.png")])


def test_no_files_at_all_are_answered_with_what_to_give():
    with pytest.raises(table.TableError, match=r"name the files that launch/evaluate\.py wrote"):
        table.format_files([])


# --- formats ------------------------------------------------------------------

NARROW = table.Table(
    [
        ["multi-MNIST-1k", "LAVAE", "36.9 ± 0.2", "42.2 ± 1.1", "100.00%", ">= 99.9%", "3 of 3"],
        ["a|b_c [1]", "LAVAE", "1.0", "", "", "", "1"],
    ],
    ["not comparable: data with max_count=5"],
)


def test_text_has_aligned_columns_and_notes_below():
    assert table.as_text(NARROW).splitlines() == [
        "data set        model  -log p(x) <=  paper       n acc. (0-3 / 7)  paper     seeds",
        "multi-MNIST-1k  LAVAE  36.9 ± 0.2    42.2 ± 1.1  100.00%           >= 99.9%  3 of 3",
        "a|b_c [1]       LAVAE  1.0                                                   1",
        "[1] not comparable: data with max_count=5",
    ]


def test_markdown_keeps_bars_within_cells_and_notes_outside_the_table():
    assert table.as_markdown(NARROW).splitlines() == [
        "| data set | model | -log p(x) <= | paper | n acc. (0-3 / 7) | paper | seeds |",
        "|---|---|---|---|---|---|---|",
        "| multi-MNIST-1k | LAVAE | 36.9 ± 0.2 | 42.2 ± 1.1 | 100.00% | >= 99.9% | 3 of 3 |",
        r"| a\|b_c [1] | LAVAE | 1.0 |  |  |  | 1 |",
        "",
        "[1] not comparable: data with max_count=5",
    ]


@pytest.mark.parametrize("form", table.FORMATS)
def test_every_format_shows_a_mark_and_its_note(form, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(changed(num_samples=10)))
    written = table.format_files([str(tmp_path / "a.json")], form)
    assert "multi-MNIST-1k [1]" in written
    assert "[1] not comparable with the paper: importance samples: 10 instead of 100" in written


def test_the_entropy_of_the_data_stands_below_the_models():
    made = make(changed(test={"entropy": 22.57}), BASELINE)
    at = [row[1] for row in made.rows[:3]]
    assert at == ["LAVAE", "baseline", "entropy of the data"]
    assert made.rows[2] == ["multi-MNIST-1k", "entropy of the data", "22.6", "", "", "", ""]


def test_digits_never_seen_stand_below_those_of_training():
    unseen = changed(dataset="multi_mnist/1k_unseen", test={"neg_bound": 60.0, "entropy": 22.57})
    made = make(changed(), unseen)
    rows = ["multi-MNIST-1k"] * 2 + ["held-out digits, of 1k"] * 2 + ["multi-MNIST-10k"]
    assert [row[0] for row in made.rows[:5]] == rows
    assert made.rows[2][1:4] == ["LAVAE", "60.0", ""]
