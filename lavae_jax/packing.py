"""Packed objects: only slots that hold an object are computed.

Each of B images has S slots, of which the first n hold an object. Since compiled shapes are static,
the objects of the whole batch are packed into arrays with a capacity of P entries. A batch with 1.5
objects per image then costs about P = 1.5 B entries instead of S B.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Budget(NamedTuple):
    """How many objects are computed.

    Attributes:
        num_slots: S, the largest number of objects in an image.
        capacity: P, the largest number of objects in a batch.
    """

    num_slots: int
    capacity: int

    @classmethod
    def for_everything(cls, num_slots: int, num_images: int) -> "Budget":
        """Creates a budget with room for S objects in every image.

        Args:
            num_slots: S.
            num_images: B.

        Returns:
            A budget that leaves no object out unless an image has more than S.
        """
        return cls(num_slots, num_slots * num_images)


class PackedObjects(NamedTuple):
    """P entries, of which the first hold the objects of the batch, image after image.

    Attributes:
        image: the image of each object, [P] int32.
        slot: the slot of each object, [P] int32.
        valid: whether the entry holds an object, [P] bool.
    """

    image: jax.Array
    slot: jax.Array
    valid: jax.Array

    def gather(self, values: jax.Array) -> jax.Array:
        """Packs the values of slots.

        Args:
            values: [B, S, ...].

        Returns:
            [P, ...].
        """
        return values[self.image, self.slot]

    def scatter(self, values: jax.Array, num_images: int, num_slots: int) -> jax.Array:
        """Inverts `gather`.

        Args:
            values: [P, ...].
            num_images: B.
            num_slots: S.

        Returns:
            [B, S, ...]; 0 where there is no object.
        """
        empty = jnp.zeros((num_images, num_slots, *values.shape[1:]), values.dtype)
        return empty.at[self.image, self.slot].add(self.mask(values))

    def sum_by_image(self, values: jax.Array, num_images: int) -> jax.Array:
        """Sums values over the objects of each image.

        Args:
            values: [P, ...].
            num_images: B.

        Returns:
            [B, ...].
        """
        return jax.ops.segment_sum(self.mask(values), self.image, num_images)

    def mask(self, values: jax.Array) -> jax.Array:
        """Sets values to 0 where there is no object.

        Args:
            values: [P, ...].

        Returns:
            [P, ...].
        """
        valid = self.valid.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.where(valid, values, 0)


def fit(count: jax.Array, budget: Budget) -> tuple[jax.Array, jax.Array]:
    """Reduces counts to those that fit a budget.

    If earlier images leave too little capacity, an image keeps fewer objects. With P = S B and S =
    M, no object is ever left out.

    Args:
        count: n, [B].
        budget: S slots per image and a capacity of P.

    Returns:
        The reduced counts, [B], and the number of objects left out, a scalar.
    """
    kept = jnp.minimum(count, budget.num_slots)
    end = jnp.minimum(jnp.cumsum(kept), budget.capacity)
    kept = jnp.diff(end, prepend=0)
    return kept, jnp.sum(count - kept)


def pack(count: jax.Array, capacity: int) -> PackedObjects:
    """Assigns the objects of images to entries.

    Args:
        count: n, [B], with a sum of at most `capacity`.
        capacity: P.

    Returns:
        The packed objects.
    """
    end = jnp.cumsum(count)
    entry = jnp.arange(capacity, dtype=count.dtype)
    valid = entry < end[-1]
    image = jnp.searchsorted(end, entry, side="right").astype(jnp.int32)
    image = jnp.minimum(image, len(count) - 1)
    slot = jnp.where(valid, entry - (end - count)[image], 0)
    return PackedObjects(image, slot, valid)
