"""A scene as LAVAE represents it: counted, located, individually editable objects."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

# Whole numbers: the slot of an object, or its location; the same in all scenes, or [B] of them.
Index = int | np.integer | Sequence[int] | np.ndarray | jax.Array
Location = Sequence[int] | Sequence[Sequence[int]] | np.ndarray | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Scene:
    """B scenes with M slots each, of which the first `count` hold an object.

    An immutable pytree that can be indexed and sliced along B (`scene[3]` is a batch of one). Each
    edit returns a new scene. Its arguments are the same for all scenes, or have a value for each.
    An edit leaves a scene unchanged if the object does not exist (or, for `add`, if no slot is
    free), so that edits work under jit. In a model with the composition "over", later slots are in
    front.

    Attributes:
        count: n, the number of objects, [B] int32.
        location: row and column of each object, [B, M, 2] int32; -1 where absent.
        appearance: z_app, [B, M, L]; 0 where absent.
        canvas: height and width, H and W.
        model_fingerprint: identifies the model to which the appearances belong; None if unknown.
        score: the probability that there is an object, [B, M], 0 where absent; None if not
            inferred.
    """

    count: jax.Array
    location: jax.Array
    appearance: jax.Array
    canvas: tuple[int, int] = dataclasses.field(metadata={"static": True})
    model_fingerprint: str | None = dataclasses.field(default=None, metadata={"static": True})
    score: jax.Array | None = None

    @classmethod
    def from_pixels(
        cls,
        count: jax.Array,
        index: jax.Array,
        z_app: jax.Array,
        canvas: tuple[int, int],
        score: jax.Array | None = None,
    ) -> "Scene":
        """Creates scenes from flat pixel indices.

        Args:
            count: n, [B].
            index: flat pixel indices, row by row, [B, M]; those after the first n are ignored.
            z_app: appearances, [B, M, L].
            canvas: height and width, H and W.
            score: probabilities of the objects, [B, M].

        Returns:
            B scenes.
        """
        present = jnp.arange(index.shape[1]) < count[:, None]
        location = jnp.stack([index // canvas[1], index % canvas[1]], axis=-1)
        return cls(
            count.astype(jnp.int32),
            jnp.where(present[..., None], location, -1).astype(jnp.int32),
            jnp.where(present[..., None], z_app, 0),
            (canvas[0], canvas[1]),
            score=None if score is None else jnp.where(present, score, 0),
        )

    @property
    def pixel(self) -> jax.Array:
        """[B, M]: the flat index of the canvas's pixel that is nearest to each location."""
        row, column = jnp.moveaxis(jnp.clip(self.location, 0, jnp.array(self.canvas) - 1), -1, 0)
        return row * self.canvas[1] + column

    @property
    def present(self) -> jax.Array:
        """[B, M] bool: the slots that hold an object."""
        return jnp.arange(self.location.shape[1]) < self.count[:, None]

    # --- a batch -----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, which: Any) -> "Scene":
        """Selects scenes.

        Args:
            which: an index, a slice, or an array [K] of indices or [B] bool.

        Returns:
            The selected scenes; for an index, a batch of one.

        Raises:
            IndexError: if an index is out of range.
        """
        if isinstance(which, tuple):
            raise TypeError("a scene has one axis to index, that of its batch")
        if not isinstance(which, slice):
            which = jnp.atleast_1d(jnp.asarray(which))
            if not isinstance(which, jax.core.Tracer) and which.dtype != bool:
                for i in which.tolist():
                    if not -len(self) <= i < len(self):
                        raise IndexError(f"there is no scene {i} among {len(self)}")
        return jax.tree.map(lambda a: a[which], self)

    def __repr__(self) -> str:
        height, width = self.canvas
        of = f"of {height}x{width} pixels, room for {self.location.shape[1]} objects each"
        if isinstance(self.count, jax.core.Tracer):
            return f"Scene({len(self)} {of}, traced)"
        counts = np.asarray(self.count).tolist()
        shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
        return f"Scene({len(self)} {of}; counts: {shown})"

    def to_dict(self) -> dict[str, Any]:
        """Converts scenes to plain numbers and lists, for JSON.

        Returns:
            A dictionary that `from_dict` inverts.
        """
        of_objects = {"location": self.location, "appearance": self.appearance}
        of_objects |= {} if self.score is None else {"score": self.score}
        arrays = {name: np.asarray(array) for name, array in of_objects.items()}
        scenes = [
            [{name: array[b, k].tolist() for name, array in arrays.items()} for k in range(n)]
            for b, n in enumerate(np.asarray(self.count))
        ]
        return {
            "canvas": list(self.canvas),
            "max_objects": self.location.shape[1],
            "latent_size": self.appearance.shape[2],
            "model": self.model_fingerprint,
            "scored": self.score is not None,
            "scenes": scenes,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Scene":
        """Inverts `to_dict`.

        Args:
            content: the dictionary.

        Returns:
            The scenes.

        Raises:
            ValueError: if the dictionary does not describe scenes.
        """
        try:
            scenes, slots = content["scenes"], content["max_objects"]
            count = np.array([len(objects) for objects in scenes], np.int32)
            location = np.full((len(scenes), slots, 2), -1, np.int32)
            appearance = np.zeros((len(scenes), slots, content["latent_size"]), np.float32)
            score = np.zeros((len(scenes), slots), np.float32) if content.get("scored") else None
            for b, objects in enumerate(scenes):
                for k, thing in enumerate(objects):
                    _check_whole("a location", thing["location"])
                    location[b, k], appearance[b, k] = thing["location"], thing["appearance"]
                    if score is not None:
                        score[b, k] = thing["score"]
            canvas, model = tuple(content["canvas"]), content["model"]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"the dictionary does not describe scenes: {error!r}") from error
        return cls(
            jnp.asarray(count),
            jnp.asarray(location),
            jnp.asarray(appearance),
            canvas,
            model,
            None if score is None else jnp.asarray(score),
        )

    # --- edits -------------------------------------------------------------------

    def swap(self, i: Index, j: Index) -> "Scene":
        """Swaps the locations of two objects: the paper's reordering.

        Args:
            i: slot of an object, a number or [B].
            j: slot of the other object, a number or [B].

        Returns:
            The edited scenes.
        """
        at_i, at_j = self._at(i), self._at(j)
        both = (at_i.any(1) & at_j.any(1))[:, None]
        of_i = jnp.sum(jnp.where(at_i[..., None], self.location, 0), 1, keepdims=True)
        of_j = jnp.sum(jnp.where(at_j[..., None], self.location, 0), 1, keepdims=True)
        moved = jnp.where(at_i[..., None], of_j, self.location)
        moved = jnp.where((at_j & ~at_i)[..., None], of_i, moved)
        return self._replace(location=jnp.where(both[..., None], moved, self.location))

    def move(self, i: Index, to: Location) -> "Scene":
        """Moves an object.

        Args:
            i: slot of the object, a number or [B].
            to: row and column, [2] or [B, 2]; `render` uses the nearest pixel of the canvas.

        Returns:
            The edited scenes.
        """
        return self._put(self._at(i), to, None)

    def with_appearance(self, i: Index, z: ArrayLike) -> "Scene":
        """Replaces the appearance of an object.

        Args:
            i: slot of the object, a number or [B].
            z: appearance, [L] or [B, L].

        Returns:
            The edited scenes.
        """
        return self._put(self._at(i), None, z)

    def remove(self, i: Index) -> "Scene":
        """Removes an object; the objects after it move up by one slot.

        Args:
            i: slot of the object, a number or [B].

        Returns:
            The edited scenes.
        """
        at = self._at(i)
        after = jnp.cumsum(at, 1) > 0  # slot i and those after it; none if object i is absent

        def close(values: jax.Array, absent: float) -> jax.Array:
            moved_up = jnp.roll(values, -1, axis=1).at[:, -1].set(absent)
            return jnp.where(
                after.reshape(*after.shape, *[1] * (values.ndim - 2)), moved_up, values
            )

        return self._replace(
            count=self.count - at.any(1),
            location=close(self.location, -1),
            appearance=close(self.appearance, 0),
            score=None if self.score is None else close(self.score, 0),
        )

    def to_front(self, i: Index) -> "Scene":
        """Moves an object to the last used slot, in front of all others; those after it move up.

        Args:
            i: slot of the object, a number or [B].

        Returns:
            The edited scenes.
        """
        slots = jnp.arange(self.location.shape[1])
        first = jnp.argmax(self._at(i), axis=1)[:, None]
        last = self.count[:, None] - 1
        is_there = self._at(i).any(1)[:, None]
        shifted = jnp.where((slots >= first) & (slots < last), slots + 1, slots)
        return self._take(jnp.where(is_there, jnp.where(slots == last, first, shifted), slots))

    def to_back(self, i: Index) -> "Scene":
        """Moves an object to the first slot, behind all others; those before it move down.

        Args:
            i: slot of the object, a number or [B].

        Returns:
            The edited scenes.
        """
        slots = jnp.arange(self.location.shape[1])
        at = self._at(i)
        index = jnp.argmax(at, axis=1)[:, None]
        shifted = jnp.where((slots > 0) & (slots <= index), slots - 1, slots)
        moved = jnp.where(slots == 0, index, shifted)
        return self._take(jnp.where(at.any(1)[:, None], moved, slots))

    def _take(self, order: jax.Array) -> "Scene":
        """Reorders the slots; `order` is [B, M]."""
        take: Callable = jax.vmap(lambda values, slot: values[slot])
        return self._replace(
            location=take(self.location, order),
            appearance=take(self.appearance, order),
            score=None if self.score is None else take(self.score, order),
        )

    def add(self, location: Location, appearance: ArrayLike) -> "Scene":
        """Adds an object in the first free slot, with a score of 1.

        Args:
            location: row and column, [2] or [B, 2].
            appearance: [L] or [B, L].

        Returns:
            The edited scenes.
        """
        slots = jnp.arange(self.location.shape[1])
        first_free = slots == self.count[:, None]  # nowhere if there is no room
        score = None if self.score is None else jnp.where(first_free, 1.0, self.score)
        grown = self._replace(count=self.count + first_free.any(1), score=score)
        return grown._put(first_free, location, appearance)

    def _put(
        self, at: jax.Array, location: Location | None, appearance: ArrayLike | None
    ) -> "Scene":
        """Sets the location, the appearance, or both, where `at` [B, M] is True."""
        changes = {}
        if location is not None:
            _check_whole("a location", location)
            to = jnp.broadcast_to(jnp.asarray(location, jnp.int32), (len(self), 2))[:, None]
            changes["location"] = jnp.where(at[..., None], to, self.location)
        if appearance is not None:
            z = jnp.broadcast_to(appearance, (len(self), self.appearance.shape[-1]))[:, None]
            changes["appearance"] = jnp.where(at[..., None], z, self.appearance)
        return self._replace(**changes)

    def _at(self, i: Index) -> jax.Array:
        """[B, M] bool: True in the slot of object i, False everywhere if it is absent."""
        slots = self.location.shape[1]
        if not isinstance(i, jax.core.Tracer):
            _check_whole("the index of an object", i)
            wrong = np.unique([k for k in np.ravel(i) if not 0 <= k < slots])
            if len(wrong):
                raise IndexError(f"object {wrong[0]}: a scene has slots 0 to {slots - 1}")
        i = jnp.broadcast_to(jnp.asarray(i), (len(self),))
        return (jnp.arange(slots) == i[:, None]) & self.present

    def _replace(self, **changes: Any) -> "Scene":
        return dataclasses.replace(self, **changes)


def _check_whole(what: str, value: Any) -> None:
    """Raises an error for fractions, unless the value is traced."""
    leaves = jax.tree.leaves(value)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return
    if not np.issubdtype(np.asarray(value).dtype, np.integer):
        raise TypeError(f"{what} must consist of whole numbers, not {value!r}")
