import json

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


def at(thing, location):
    return (*location[:2], thing[2])


def test_the_pixel_of_a_location_beyond_the_border_is_the_nearest():
    scene = make([(25, 5, 1.0), (-3, 30, 1.0), (20, 24, 1.0), (19, 23, 1.0)])
    assert scene.pixel.tolist() == [[19 * 24 + 5, 23, 20 * 24 - 1, 20 * 24 - 1]]


def test_swap_exchanges_the_locations_of_two_objects(edit):
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


def test_an_object_moves_to_the_front_or_the_back_of_its_scene(edit):
    assert edit("to_front", 1) == [[A, C, B], [A], [], [A, C, D, B]]
    assert edit("to_front", np.array([2, 0, 0, 0])) == [[A, B, C], [A], [], [B, C, D, A]]
    assert edit("to_back", 2) == [[C, A, B], [A], [], [C, A, B, D]]
    assert edit("to_back", np.array([0, 0, 1, 3])) == [[A, B, C], [A], [], [D, A, B, C]]


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


def test_a_scene_can_be_indexed_and_sliced():
    scene = make(*SCENES)
    assert unmake(scene[0]) == [SCENES[0]]
    assert unmake(scene[-1]) == unmake(scene[np.int64(3)]) == [SCENES[3]]
    assert unmake(scene[1:3]) == list(SCENES[1:3])
    assert unmake(scene[[3, 0]]) == [SCENES[3], SCENES[0]]
    assert unmake(scene[np.array([True, False, False, True])]) == [SCENES[0], SCENES[3]]
    assert [unmake(one)[0] for one in scene] == list(SCENES)
    assert unmake(scene[jnp.argmax(scene.count)]) == [SCENES[3]]
    picked = jax.jit(lambda scene, i: scene[i])(scene, 1)
    assert unmake(picked) == [SCENES[1]]
    for index in (4, [0, 9], -5):
        with pytest.raises(IndexError, match=r"there is no scene .* among 4"):
            scene[index]
    with pytest.raises(TypeError, match="one axis"):
        scene[0, 1]


def test_a_scene_shows_itself_in_a_line():
    scene = make(*SCENES)
    assert repr(scene) == ("Scene(4 of 20x24 pixels, room for 4 objects each; counts: 3, 1, 0, 4)")
    assert repr(make(*[[A]] * 20)).endswith("1, 1, 1, 1, 1, 1, 1, 1, ...)")
    shown = []
    jax.jit(lambda scene: shown.append(repr(scene)))(scene)
    assert "traced" in shown[0]


def test_a_scene_survives_json():
    scene = make(*SCENES)
    again = Scene.from_dict(json.loads(json.dumps(scene.to_dict())))
    assert unmake(again) == unmake(scene)
    assert jax.tree.structure(again) == jax.tree.structure(scene)
    for before, after in zip(jax.tree.leaves(scene), jax.tree.leaves(again), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    with pytest.raises(ValueError, match="does not describe scenes: KeyError"):
        Scene.from_dict({"scenes": []})
    between = scene.to_dict()
    between["scenes"][0][0]["location"] = [1.7, 2]
    with pytest.raises(ValueError, match="a location must consist of whole numbers"):
        Scene.from_dict(between)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (-1, IndexError, "object -1: a scene has slots 0 to 3"),
        (4, IndexError, "object 4: "),
        (np.array([0, 0, 9, 0]), IndexError, "object 9: "),
        (0.5, TypeError, "index of an object must consist of whole numbers"),
    ],
)
def test_an_index_that_no_object_can_have_is_refused(index, error, message):
    scene = make(*SCENES)
    edits = (
        lambda: scene.remove(index),
        lambda: scene.move(index, (1, 1)),
        lambda: scene.swap(0, index),
        lambda: scene.with_appearance(index, np.zeros(L)),
    )
    for edit in edits:
        with pytest.raises(error, match=message):
            edit()


def test_a_location_between_pixels_is_refused():
    scene = make(*SCENES)
    with pytest.raises(TypeError, match="a location must consist of whole numbers"):
        scene.move(0, (1.5, 2.0))
    with pytest.raises(TypeError, match="a location must consist of whole numbers"):
        scene.add((1.5, 2.0), np.zeros(L))
