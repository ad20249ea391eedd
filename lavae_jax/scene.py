"""A scene as LAVAE sees it: counted, located, individually editable objects."""

import dataclasses

import jax
import jax.numpy as jnp

Index = int | jax.Array  # of an object: one number, or one for each scene


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scene:
    """B scenes with room for M objects each; the first `count` places are taken.

    An immutable pytree. Every edit returns a new scene and takes either one argument
    for all scenes or one for each. An edit of an object that is not there (and `add`
    where there is no room) leaves that scene as it was, so that edits work under jit.
    """

    count: jax.Array  # [B] int32
    location: jax.Array  # [B, M, 2] int32: row and column, -1 where absent
    appearance: jax.Array  # [B, M, L], 0 where absent
    canvas: tuple[int, int] = dataclasses.field(metadata={"static": True})

    def __len__(self) -> int:
        return len(self.count)

    @property
    def present(self) -> jax.Array:
        """[B, M]: which places hold an object."""
        return jnp.arange(self.location.shape[1]) < self.count[:, None]

    def swap(self, i: Index, j: Index) -> "Scene":
        """Objects i and j change places: the paper's reordering of locations."""
        at_i, at_j = self._at(i), self._at(j)
        both = (at_i.any(1) & at_j.any(1))[:, None]
        of_i = jnp.sum(jnp.where(at_i[..., None], self.location, 0), 1, keepdims=True)
        of_j = jnp.sum(jnp.where(at_j[..., None], self.location, 0), 1, keepdims=True)
        moved = jnp.where(at_i[..., None], of_j, self.location)
        moved = jnp.where((at_j & ~at_i)[..., None], of_i, moved)
        return self._replace(location=jnp.where(both[..., None], moved, self.location))

    def move(self, i: Index, to: jax.Array) -> "Scene":
        """Object i goes to (row, column); `render` takes the nearest pixel of the canvas."""
        to = jnp.broadcast_to(jnp.asarray(to, jnp.int32), (len(self), 2))[:, None]
        return self._replace(location=jnp.where(self._at(i)[..., None], to, self.location))

    def with_appearance(self, i: Index, z: jax.Array) -> "Scene":
        """Object i looks as z [L] or [B, L] says."""
        z = jnp.broadcast_to(z, (len(self), self.appearance.shape[-1]))[:, None]
        return self._replace(appearance=jnp.where(self._at(i)[..., None], z, self.appearance))

    def remove(self, i: Index) -> "Scene":
        """Object i goes; those after it move up by one place."""
        at = self._at(i)
        after = jnp.cumsum(at, 1) > 0  # from i on, where there is an i

        def close(values, absent):
            moved_up = jnp.roll(values, -1, axis=1).at[:, -1].set(absent)
            return jnp.where(after[..., None], moved_up, values)

        return self._replace(
            count=self.count - at.any(1),
            location=close(self.location, -1),
            appearance=close(self.appearance, 0),
        )

    def add(self, location: jax.Array, appearance: jax.Array) -> "Scene":
        """One more object, in the first free place."""
        room = self.count < self.location.shape[1]
        grown = self._replace(count=self.count + room)
        last = jnp.where(room, self.count, -1)
        return grown.move(last, location).with_appearance(last, appearance)

    def _at(self, i: Index) -> jax.Array:
        """[B, M]: the place of object i, nowhere if there is none."""
        i = jnp.broadcast_to(jnp.asarray(i), (len(self),))
        return (jnp.arange(self.location.shape[1]) == i[:, None]) & self.present

    def _replace(self, **changes) -> "Scene":
        return dataclasses.replace(self, **changes)
