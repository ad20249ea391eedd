import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lavae_jax import Scene

M, L = 4, 2


def make(*scenes):
    """Scenes out of lists of (row, column, z)."""
    location = np.full((len(scenes), M, 2), -1, np.int32)
    appearance = np.zeros((len(scenes), M, L), np.float32)
    for b, objects in enumerate(scenes):
        for k, (row, column, z) in enumerate(objects):
            location[b, k], appearance[b, k] = (row, column), z
    count = np.array([len(s) for s in scenes], np.int32)
    return Scene(*map(jnp.asarray, (count, location, appearance)), canvas=(20, 24))


def unmake(scene):
    return [
        [(*map(int, scene.location[b, k]), float(scene.appearance[b, k, 0])) for k in range(n)]
        for b, n in enumerate(np.asarray(scene.count))
    ]


A, B, C, D = (1, 2, 10.0), (3, 4, 20.0), (5, 6, 30.0), (7, 8, 40.0)
SCENES = ([A, B, C], [A], [], [A, B, C, D])


@pytest.fixture(params=["eager", "jit"])
def edit(request):
    """Applies an edit to SCENES, plainly and compiled."""

    def run(name, *arguments):
        def function(scene, *arguments):
            return getattr(scene, name)(*arguments)

        function = jax.jit(function) if request.param == "jit" else function
        scene = make(*SCENES)
        edited = function(scene, *arguments)
        assert unmake(scene) == [list(s) for s in SCENES]  # the old one is as it was
        absent = ~np.asarray(edited.present)
        assert (np.asarray(edited.location)[absent] == -1).all()
        assert (np.asarray(edited.appearance)[absent] == 0).all()
        assert edited.canvas == (20, 24)
        return unmake(edited)

    return run


def at(thing, place):
    return (*place[:2], thing[2])


def test_swap_exchanges_the_places_of_two_objects(edit):
    swapped = edit("swap", 0, 2)
    assert swapped[0] == [at(A, C), B, at(C, A)]
    assert swapped[1:3] == [[A], []]  # there is no object 2
    assert swapped[3] == [at(A, C), B, at(C, A), D]
    assert edit("swap", 1, 1) == [list(s) for s in SCENES]


def test_move_changes_one_location(edit):
    assert edit("move", 1, (9, 9)) == [[A, (9, 9, 20.0), C], [A], [], [A, (9, 9, 20.0), C, D]]
    each = edit("move", jnp.array([2, 0, 0, 3]), jnp.array([[0, 1], [0, 2], [0, 3], [0, 4]]))
    assert each == [[A, B, (0, 1, 30.0)], [(0, 2, 10.0)], [], [A, B, C, (0, 4, 40.0)]]


def test_remove_closes_the_gap(edit):
    assert edit("remove", 1) == [[A, C], [A], [], [A, C, D]]
    assert edit("remove", 0) == [[B, C], [], [], [B, C, D]]
    assert edit("remove", 3) == [[A, B, C], [A], [], [A, B, C]]


def test_add_appends_where_there_is_room(edit):
    new = (9, 9, 5.0)
    added = edit("add", (9, 9), jnp.full(L, 5.0))
    assert added == [[A, B, C, new], [A, new], [new], [A, B, C, D]]


def test_with_appearance_changes_one_appearance(edit):
    changed = edit("with_appearance", 0, jnp.full(L, 7.0))
    assert changed == [[(1, 2, 7.0), B, C], [(1, 2, 7.0)], [], [(1, 2, 7.0), B, C, D]]
    each = edit("with_appearance", 0, jnp.arange(4.0)[:, None] * jnp.ones(L))
    assert each[3][0] == (1, 2, 3.0)


def test_a_scene_is_a_pytree_and_cannot_be_changed():
    scene = make(*SCENES)
    doubled = jax.tree.map(lambda a: a[:2], scene)
    assert len(doubled) == 2
    with pytest.raises(AttributeError):
        scene.count = 3
