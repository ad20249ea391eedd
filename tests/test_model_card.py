"""The model card that `lavae export` writes says what the other files of the folder say."""

import json
import shutil

import pytest

from lavae_jax import model_card, model_files

NAMES = model_files.names()


@pytest.fixture
def folder(tmp_path):
    """An exported model without its weights and its results."""
    copy = tmp_path / "mine"
    copy.mkdir()
    for name in (model_files.CONFIG, model_files.PROVENANCE):
        shutil.copy(model_files.SHIPPED / "mnist1k" / name, copy)
    return copy


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def result(**changes):
    scores = {"images": 1234, "neg_bound": 45.678, "standard_error": 0.5, "count_accuracy": 0.98765}
    described = {"dataset": "multi_mnist/1k", "overrides": "", "seed": 0, "num_samples": 7}
    return json.dumps({**described, "splits": {"test": scores}, **changes})


@pytest.mark.parametrize("name", NAMES)
def test_cards_of_shipped_weights_are_up_to_date(name):
    """Otherwise: lavae export --card=lavae_jax/weights/NAME"""
    shipped = model_files.SHIPPED / name
    assert (shipped / model_card.CARD).read_text() == model_card.text(shipped)


def test_a_card_has_the_command_the_time_and_the_data(folder):
    change(folder / model_files.PROVENANCE, command="train it", seconds=3723.4, step=5000)
    card = model_card.text(folder)
    assert "`train it`" in card
    assert "5,000 steps, 1:02:03" in card
    assert "trained on `multi_mnist/1k` by the recipe `cpu`" in card


def test_a_card_has_a_row_for_each_split_that_was_measured(folder):
    (folder / "results_other.json").write_text(result(overrides="apart=8"))
    card = model_card.text(folder)
    row = "| `multi_mnist/1k` with `apart=8` | test | 1,234 | 7 | 45.68 | 0.50 | 98.77% |  |  |"
    assert row in card.splitlines()


def test_a_card_leaves_out_results_of_another_seed(folder):
    (folder / "results_seed1.json").write_text(result(seed=1))
    assert "45.68" not in model_card.text(folder)
    assert "None yet" in model_card.text(folder)


@pytest.mark.parametrize(
    ("phases", "warns"), [(("auxiliary", "peaks"), True), (("auxiliary", "sleep"), False)]
)
def test_a_card_warns_of_overlap_unless_the_model_was_trained_on_it(folder, phases, warns):
    config = model_files.read_config(folder)
    config.curriculum.phases = phases
    (folder / model_files.CONFIG).write_text(config.to_json())
    assert (model_card.NO_OVERLAP in model_card.text(folder)) == warns


def test_a_baseline_is_not_recommended_for_counting(folder):
    shutil.copy(model_files.SHIPPED / "baseline_mnist1k" / model_files.CONFIG, folder)
    card = model_card.text(folder)
    assert card.index("## Limitations") < card.index(model_card.NO_OBJECTS)
    assert "Counting, locating and editing objects like" not in card


def test_a_card_is_written_anew(folder):
    model_card.write(folder)
    (folder / "results.json").write_text(result())
    model_card.write(folder)
    assert "45.68" in (folder / model_card.CARD).read_text()
