"""Only slots that hold an object are computed.

Each of B images has S slots, of which the first n hold an object. Compiled shapes
are static, so the objects of the whole batch are packed into arrays of a capacity of P
entries; a batch with 1.5 objects an image then pays for P = 1.5 B or so instead of S B.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Budget(NamedTuple):
    """How many objects are computed: S slots an image, a capacity of P in a batch."""

    num_slots: int
    capacity: int

    @classmethod
    def for_everything(cls, num_slots: int, num_images: int) -> "Budget":
        """Room for S objects in every image: nothing is cut if no image has more."""
        return cls(num_slots, num_slots * num_images)


class PackedObjects(NamedTuple):
    """P entries. The first of them hold the objects of the batch, image after image."""

    image: jax.Array  # [P] int32
    slot: jax.Array  # [P] int32
    valid: jax.Array  # [P] bool: whether there is an object

    def gather(self, values: jax.Array) -> jax.Array:
        """[B, S, ...] -> [P, ...]."""
        return values[self.image, self.slot]

    def scatter(self, values: jax.Array, num_images: int, num_slots: int) -> jax.Array:
        """[P, ...] -> [B, S, ...], the inverse of `gather`; 0 where there is no object."""
        empty = jnp.zeros((num_images, num_slots, *values.shape[1:]), values.dtype)
        return empty.at[self.image, self.slot].add(self.mask(values))

    def sum_by_image(self, values: jax.Array, num_images: int) -> jax.Array:
        """Sums [P, ...] over the objects of each image: [B, ...]."""
        return jax.ops.segment_sum(self.mask(values), self.image, num_images)

    def mask(self, values: jax.Array) -> jax.Array:
        """[P, ...], with zeros where there is no object."""
        valid = self.valid.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.where(valid, values, 0)


def fit(count: jax.Array, budget: Budget) -> tuple[jax.Array, jax.Array]:
    """Counts [B] that fit S slots an image and the capacity P, and the number of objects cut.

    Where the images before it leave too little capacity, an image keeps fewer objects. With
    capacity = S B and S = M, none is ever cut.
    """
    kept = jnp.minimum(count, budget.num_slots)
    end = jnp.minimum(jnp.cumsum(kept), budget.capacity)
    kept = jnp.diff(end, prepend=0)
    return kept, jnp.sum(count - kept)


def pack(count: jax.Array, capacity: int) -> PackedObjects:
    """The objects of images with counts [B], which fit the capacity."""
    end = jnp.cumsum(count)
    entry = jnp.arange(capacity, dtype=count.dtype)
    valid = entry < end[-1]
    image = jnp.searchsorted(end, entry, side="right").astype(jnp.int32)
    image = jnp.minimum(image, len(count) - 1)
    slot = jnp.where(valid, entry - (end - count)[image], 0)
    return PackedObjects(image, slot, valid)
