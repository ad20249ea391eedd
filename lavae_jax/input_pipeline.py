"""From scenes on disk to batches on devices.

Batch i of a run is the same list of examples for any number of processes. Each process reads its
own contiguous part of the list, and splits that over its devices.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from lavae_jax.arrays import Integers
from lavae_jax.errors import UserError

if TYPE_CHECKING:
    import grain
    import tensorflow_datasets as tfds

Batch = dict[str, np.ndarray]


class ProcessShard(NamedTuple):
    """The part of every list of examples that one process handles.

    Attributes:
        process_index: the process.
        process_count: the number of processes.
        num_devices: the number of devices of the process.
    """

    process_index: int = 0
    process_count: int = 1
    num_devices: int = 1

    @classmethod
    def of_this_process(cls) -> "ProcessShard":
        """Makes the shard of this process.

        Returns:
            The shard.
        """
        return cls(jax.process_index(), jax.process_count(), jax.local_device_count())

    def check(self, batch_size: int) -> None:
        """Checks that batches can be split evenly.

        Args:
            batch_size: the number of examples in a batch, over all processes.

        Raises:
            ValueError: if the batch size is not a positive multiple of the number of devices.
        """
        parts = self.process_count * self.num_devices
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if batch_size % parts:
            raise ValueError(
                f"batch_size={batch_size} cannot be split evenly over {self.process_count} "
                f"processes with {self.num_devices} devices each; use a multiple of {parts}"
            )

    def take(self, items: np.ndarray) -> np.ndarray:
        """Selects this process's part of a list. All parts have the same length.

        Args:
            items: [N, ...].

        Returns:
            The part; the last item is repeated where the list is too short.
        """
        size = -(-len(items) // self.process_count)
        first = self.process_index * size
        return items[np.minimum(np.arange(first, first + size), len(items) - 1)]

    def gather(self, tree: Any, length: int) -> Any:
        """Joins the results of all processes, the inverse of `take`.

        Args:
            tree: arrays for the part that this process took.
            length: N, the number of items of the whole list.

        Returns:
            Arrays [N, ...], the same in every process.
        """
        if self.process_count == 1:
            return tree
        return jax.tree.map(lambda a: _of_all_processes(np.asarray(a))[:length], tree)


def _of_all_processes(array: np.ndarray) -> np.ndarray:
    """The arrays of all processes in order; sent as bytes, since JAX would round float64."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    raw = multihost_utils.process_allgather(raw, tiled=True)
    return raw.view(array.dtype).reshape(-1, *array.shape[1:])


class DataError(UserError):
    """A data set cannot be read; the message says which, and what to do."""


class Source(Protocol):
    """Random access to examples."""

    @property
    def varies(self) -> bool:
        """Whether an example differs from one draw to the next."""

    def __len__(self) -> int: ...

    def read(self, index: Integers, draws: Integers | None = None) -> Batch:
        """Reads examples.

        Args:
            index: the indices of the examples.
            draws: the position of each example in the sequence of all examples that training draws,
                which seeds whatever is random in it; None for the same examples every time.

        Returns:
            The examples, stacked.
        """


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of a data set, of which only some features are decoded.

    Attributes:
        records: the encoded examples.
        features: the features to decode.
        folder: the data set's folder, for error messages.
        varies: False, since examples are always the same.
    """

    records: Any  # TFDS's data source
    features: "tfds.features.FeaturesDict"
    folder: str
    varies = False

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: Integers, draws: Integers | None = None) -> Batch:
        """Reads examples; images become float32 from 0 to 1.

        Args:
            index: the indices of the examples.
            draws: ignored.

        Returns:
            The examples, stacked.

        Raises:
            DataError: if the data set is damaged.
        """
        try:
            records = self.records.__getitems__(list(index))
        except RuntimeError as error:  # array_record raises it for all kinds of damage
            raise DataError(
                f"the data set in {self.folder} is damaged ({str(error).splitlines()[0]}). "
                "Delete that folder; it is regenerated when it is needed"
            ) from error
        examples = [self.features.deserialize_example_np(record) for record in records]
        batch = {name: np.stack([e[name] for e in examples]) for name in self.features}
        if "image" in batch:
            batch["image"] = batch["image"].astype(np.float32) / 255
        return batch


@dataclasses.dataclass(frozen=True)
class Part:
    """Some examples of a source, as a separate source.

    Attributes:
        source: the whole source.
        examples: the indices of the part's examples in it.
    """

    source: Source
    examples: range

    @property
    def varies(self) -> bool:
        """Whether an example differs from one draw to the next."""
        return self.source.varies

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: Integers, draws: Integers | None = None) -> Batch:
        """Reads examples.

        Args:
            index: the indices of the examples in this part.
            draws: see `Source.read`.

        Returns:
            The examples, stacked.
        """
        return self.source.read([self.examples[i] for i in index], draws)


def open_split(
    builder: "tfds.core.DatasetBuilder", split: str, features: Sequence[str] = ("image",)
) -> Split:
    """Opens a split of a scene data set.

    Args:
        builder: the data set, which must be on disk.
        split: its name.
        features: the features to decode.

    Returns:
        The split.
    """
    import tensorflow_datasets as tfds

    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    wanted = {name: builder.info.features[name] for name in features}
    records = builder.as_data_source(split, deserialize_method=raw)
    return Split(records, tfds.features.FeaturesDict(wanted), str(builder.data_dir))


def train_batches(
    source: Source, batch_size: int, seed: int, *, shard: ProcessShard | None = None
) -> "grain.DatasetIterator":
    """Makes endless batches of training examples, which are reshuffled every epoch.

    The iterator's state (`get_state`, `set_state`) is its position in the stream, in a few bytes.
    After it is restored, the next batch of the stream follows.

    Args:
        source: the training examples.
        batch_size: the number of examples in a batch, over all processes.
        seed: determines the order.
        shard: the part that is read; by default that of this process.

    Returns:
        An iterator of batches [devices, batch_size / devices, ...] with the examples' features and
        their indices, `index`.

    Raises:
        ValueError: if there are no examples, or batches cannot be split evenly.
    """
    import grain

    shard = shard or ProcessShard.of_this_process()
    shard.check(batch_size)
    if not len(source):
        raise ValueError("there are no examples to train on")

    def read(number: int, index: np.ndarray) -> Batch:
        draws = number * batch_size + np.arange(batch_size)
        index, draws = shard.take(index), shard.take(draws)
        return _to_devices({**source.read(index, draws), "index": index}, shard)

    order = grain.MapDataset.range(len(source)).shuffle(seed=seed).repeat().batch(batch_size)
    return iter(order.map_with_index(read).to_iter_dataset(_read_ahead()))


def eval_batches(
    source: Source, batch_size: int, *, shard: ProcessShard | None = None, reading: int = 0
) -> Iterator[Batch]:
    """Makes batches of all examples in order, each exactly once over all processes and devices.

    The last batch is padded with copies of the first example.

    Args:
        source: the examples.
        batch_size: the number of examples in a batch, over all processes.
        shard: the part that is read; by default that of this process.
        reading: the index of this pass; examples that vary, such as random crops, depend on it.

    Returns:
        An iterator of batches [devices, batch_size / devices, ...] with the examples' features and
        `valid`, which is False for copies.

    Raises:
        ValueError: if batches cannot be split evenly.
    """
    import grain

    shard = shard or ProcessShard.of_this_process()
    shard.check(batch_size)

    def read(start: int) -> Batch:
        index = np.arange(start, start + batch_size)
        valid = index < len(source)
        index = shard.take(np.where(valid, index, 0))
        batch = source.read(index, index + reading * len(source) if reading else None)
        return _to_devices({**batch, "valid": shard.take(valid)}, shard)

    starts = grain.MapDataset.range(0, len(source), batch_size)
    return iter(starts.map(read).to_iter_dataset(_read_ahead()))


def _read_ahead() -> "grain.ReadOptions":
    """Reads whole batches in parallel, rather than examples: two threads keep two cores busy."""
    import grain

    return grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)


def _to_devices(batch: Batch, shard: ProcessShard) -> Batch:
    return {k: v.reshape(shard.num_devices, -1, *v.shape[1:]) for k, v in batch.items()}
