import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lavae_jax import packing


@pytest.mark.parametrize("count", [[2, 0, 3, 1], [0, 0, 0, 0], [3, 3, 3, 3], [0, 0, 0, 2]])
def test_every_object_has_one_entry_in_order(count):
    objects = packing.pack(jnp.array(count), capacity=12)
    packed = np.stack([objects.image, objects.slot], 1)[np.asarray(objects.valid)]
    assert packed.tolist() == [[b, s] for b, n in enumerate(count) for s in range(n)]


def test_values_are_gathered_and_summed_by_image():
    count = jnp.array([2, 0, 3])
    values = jax.random.normal(jax.random.key(0), (3, 3, 4))
    objects = packing.pack(count, capacity=7)
    used = np.arange(3) < np.asarray(count)[:, None]
    expected = np.where(used[..., None], values, 0).sum(1)
    total = objects.sum_by_image(objects.gather(values), 3)
    np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("count", "num_slots", "capacity", "kept", "cut"),
    [
        ([2, 0, 3, 1], 3, 12, [2, 0, 3, 1], 0),
        ([2, 0, 5, 1], 3, 12, [2, 0, 3, 1], 2),
        ([2, 0, 3, 1], 3, 4, [2, 0, 2, 0], 2),
        ([3, 3, 3, 3], 3, 3, [3, 0, 0, 0], 9),
    ],
)
def test_objects_beyond_the_budget_are_dropped_and_counted(count, num_slots, capacity, kept, cut):
    fitted, overflow = packing.fit(jnp.array(count), packing.Budget(num_slots, capacity))
    assert fitted.tolist() == kept
    assert overflow == cut
