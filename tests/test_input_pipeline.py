import itertools
import json

import numpy as np
import pytest

from lavae_jax import input_pipeline
from lavae_jax.input_pipeline import Part, ProcessShard


@pytest.fixture(scope="module")
def source(mnist_builder):
    return input_pipeline.open_split(mnist_builder, "train", ("image", "count"))


def take(iterator, n):
    return list(itertools.islice(iterator, n))


def test_images_are_zeros_and_ones(source):
    batch = next(input_pipeline.train_batches(source, 32, seed=0))
    assert batch["image"].shape == (1, 32, 64, 64, 1)
    assert batch["image"].dtype == np.float32
    assert set(np.unique(batch["image"])) == {0.0, 1.0}


def test_an_epoch_has_every_example_once_and_is_shuffled_anew():
    """A source that returns its own indices shows the order."""
    first, second = epochs_of_indices(seed=0)
    assert sorted(first) == sorted(second) == list(range(1_200))
    assert list(first) != list(second)
    assert list(epochs_of_indices(seed=1)[0]) != list(first)


class Indices:
    def __len__(self):
        return 1_200

    def read(self, index, draws=None):
        return {"number": np.array(index)}


def epochs_of_indices(seed):
    batches = take(input_pipeline.train_batches(Indices(), 60, seed), 40)
    order = np.concatenate([b["number"].ravel() for b in batches])
    return order[:1_200], order[1_200:]


@pytest.mark.parametrize(
    "shard", [ProcessShard(0, 2, 2), ProcessShard(0, 4, 1), ProcessShard(0, 1, 4)]
)
def test_a_batch_is_the_same_on_any_number_of_processes_and_devices(shard):
    whole = [b["number"].ravel() for b in take(_indices(ProcessShard()), 5)]
    parts = [take(_indices(shard._replace(process_index=p)), 5) for p in range(shard.process_count)]
    for step in range(5):
        assert parts[0][step]["number"].shape == (shard.num_devices, 15)
        joined = np.concatenate([part[step]["number"].ravel() for part in parts])
        np.testing.assert_array_equal(joined, whole[step])


def _indices(shard):
    return input_pipeline.train_batches(Indices(), 60, seed=3, shard=shard)


def test_a_resumed_iterator_gives_the_very_next_batch(source):
    batches = input_pipeline.train_batches(source, 50, seed=0)
    take(batches, 30)  # into the second epoch
    state = batches.get_state()
    expected = take(batches, 3)
    resumed = input_pipeline.train_batches(source, 50, seed=0)
    resumed.set_state(state)
    for ours, theirs in zip(take(resumed, 3), expected, strict=True):
        np.testing.assert_array_equal(ours["image"], theirs["image"])


def test_training_can_be_restricted_to_a_part_of_the_split():
    batches = input_pipeline.train_batches(Part(Indices(), range(100, 200)), 50, 0)
    seen = np.concatenate([b["number"].ravel() for b in take(batches, 2)])
    assert sorted(seen) == list(range(100, 200))


@pytest.mark.parametrize("process_count", [1, 2, 3])
@pytest.mark.parametrize("examples", [range(1_200), range(7), range(10, 131)])
def test_evaluation_sees_every_example_once_in_order(process_count, examples):
    def evaluate(p):
        shard = ProcessShard(p, process_count, 2)
        return input_pipeline.eval_batches(Part(Indices(), examples), 12, shard=shard)

    seen = []
    for parts in zip(*(evaluate(p) for p in range(process_count)), strict=True):
        for part in parts:
            assert part["number"].shape == part["valid"].shape == (2, 6 // process_count)
            seen.extend(part["number"][part["valid"]])
    assert seen == list(examples)


def test_evaluation_of_an_empty_range_is_empty():
    assert list(input_pipeline.eval_batches(Part(Indices(), range(0)), 4)) == []


@pytest.mark.parametrize("process_count", [1, 2, 3, 16])
@pytest.mark.parametrize("size", [1, 7, 12])
def test_parts_of_a_list_are_equally_long_and_make_up_the_whole(process_count, size):
    parts = [ProcessShard(p, process_count).take(np.arange(size)) for p in range(process_count)]
    assert len({len(part) for part in parts}) == 1
    whole = np.concatenate(parts)
    assert whole[:size].tolist() == list(range(size))
    assert (whole[size:] == size - 1).all()


def test_a_batch_that_cannot_be_split_is_refused(source):
    with pytest.raises(ValueError, match=r"batch_size=10 .* multiple of 4"):
        input_pipeline.train_batches(source, 10, 0, shard=ProcessShard(0, 2, 2))


def test_benchmark_prints_images_a_second(launch, mnist_builder):
    result = launch(
        "benchmark.py",
        "--what=input",
        "--seconds=0.5",
        "--set=num_train=1200,num_test=60,num_crowd=40",
        f"--data_dir={mnist_builder._data_dir_root}",
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["images_per_second"] > 0
