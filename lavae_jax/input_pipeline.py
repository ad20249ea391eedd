"""From scenes on disk to batches on devices.

Batch i of a run is one list of examples, whatever the number of processes: each
process reads its own contiguous part of it, and splits that over its devices.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grain
import jax
import numpy as np
import tensorflow_datasets as tfds

Batch = dict[str, np.ndarray]


class Share(NamedTuple):
    """The part of every batch that one process handles."""

    process_index: int = 0
    process_count: int = 1
    num_devices: int = 1  # local to the process

    @classmethod
    def of_this_process(cls) -> "Share":
        return cls(jax.process_index(), jax.process_count(), jax.local_device_count())

    def check(self, batch_size: int) -> None:
        parts = self.process_count * self.num_devices
        if batch_size < 1 or batch_size % parts:
            raise ValueError(
                f"batch_size={batch_size} cannot be split evenly over {self.process_count} "
                f"processes with {self.num_devices} devices each; use a multiple of {parts}"
            )

    def take(self, items: Sequence) -> Sequence:
        size = len(items) // self.process_count
        return items[self.process_index * size : (self.process_index + 1) * size]


@dataclasses.dataclass(frozen=True)
class Source:
    """Random access to a split, with only the named features decoded."""

    records: Sequence[bytes]
    features: tfds.features.FeaturesDict

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: Sequence[int]) -> Batch:
        """Examples stacked into a batch; the image becomes float32, 0 or 1."""
        records = self.records.__getitems__(list(index))
        examples = [self.features.deserialize_example_np(record) for record in records]
        batch = {name: np.stack([e[name] for e in examples]) for name in self.features}
        if "image" in batch:
            batch["image"] = (batch["image"] > 127).astype(np.float32)
        return batch


def open_split(
    builder: tfds.core.DatasetBuilder, split: str, features: Sequence[str] = ("image",)
) -> Source:
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    wanted = {name: builder.info.features[name] for name in features}
    records = builder.as_data_source(split, deserialize_method=raw)
    return Source(records, tfds.features.FeaturesDict(wanted))


def train_batches(
    source: Source,
    batch_size: int,
    seed: int,
    *,
    examples: range | None = None,
    share: Share | None = None,
) -> grain.DatasetIterator:
    """Batches [devices, batch_size / devices, ...] without end, reshuffled every epoch.

    `examples` restricts the epoch to a part of the split. The iterator's state
    (`get_state`, `set_state`) is the position in the stream: a few bytes, after
    which the very next batch follows.
    """
    share = share or Share.of_this_process()
    share.check(batch_size)
    examples = range(len(source)) if examples is None else examples
    if not examples:
        raise ValueError("there are no examples to train on")

    def read(index: np.ndarray) -> Batch:
        mine = share.take(index)
        return _to_devices(source.read([examples[i] for i in mine]), share)

    order = grain.MapDataset.range(len(examples)).shuffle(seed=seed).repeat().batch(batch_size)
    return iter(order.map(read).to_iter_dataset(_READ_AHEAD))


def eval_batches(
    source: Source,
    batch_size: int,
    *,
    examples: range | None = None,
    share: Share | None = None,
) -> Iterator[Batch]:
    """The examples in order, each exactly once over all processes and devices.

    The last batch is filled up with copies of the first example; `valid` [devices,
    batch_size / devices] is False there.
    """
    share = share or Share.of_this_process()
    share.check(batch_size)
    examples = range(len(source)) if examples is None else examples

    def read(start: int) -> Batch:
        index = np.arange(start, start + batch_size)
        valid = index < len(examples)
        mine = share.take(np.where(valid, index, 0))
        batch = source.read([examples[i] for i in mine])
        return _to_devices({**batch, "valid": share.take(valid)}, share)

    starts = grain.MapDataset.range(0, len(examples), batch_size)
    return iter(starts.map(read).to_iter_dataset(_READ_AHEAD))


# Batches, not examples, are read in parallel: two threads keep two cores fed.
_READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)


def _to_devices(batch: Batch, share: Share) -> Batch:
    return {k: v.reshape(share.num_devices, -1, *v.shape[1:]) for k, v in batch.items()}
