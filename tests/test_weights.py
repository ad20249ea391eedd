"""The weights that come with the package do what README says of them."""

import json

import jax
import numpy as np
import pytest
from conftest import ROOT

import datasets
import lavae_jax
from lavae_jax.model_files import SHIPPED, names

NAMES = names()
LAVAES = [name for name in NAMES if not name.startswith("baseline")]
# Pixels that are rendered wrong, for each foreground pixel: the decoder reproduces 1,000 digits
# exactly, but of 10,000 the shape and not every pixel of the rim. A wrong digit has over 1.
WRONG_PIXELS = {"dsprites": 0.05, "mnist1k": 0.05, "mnist10k": 0.25}


@pytest.mark.parametrize("name", NAMES)
def test_shipped_weights_are_small_complete_and_free_of_local_paths(name):
    folder = SHIPPED / name
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 3e6
    model = lavae_jax.load(name)
    config = name.removesuffix("_mixture").removesuffix("_overlap")
    assert model.config.name == config
    assert ("mixture" in name) == (model.config.model.get("prior", {}).get("kind") == "mixture")
    assert not model.config.dataset.data_dir
    assert not model.config.dataset.mnist_dir
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["command"].startswith(f"python launch/train.py --config=configs/{config}.py")
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(root in written for root in (b"/tmp", b"/work/", b"/home/"))


@pytest.mark.parametrize("name", ["baseline_mnist1k", "dsprites", "mnist1k_mixture"])
def test_loading_compiles_nothing(name):
    """It traces the networks at most once, for the shapes of their weights."""
    work = []

    def note(event, duration, **_):
        work.append(event.rpartition("/")[-1])

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        lavae_jax.load(name)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert work in ([], ["jaxpr_trace_duration"])


@pytest.mark.parametrize("name", LAVAES)
def test_fresh_scenes_are_decomposed_into_the_right_objects(name):
    model = lavae_jax.load(name)
    builder = datasets.demo_builder(model.config.dataset.name)
    for counts, least in ((None, 0.98), ((7, 7), 0.95)):
        scenes = builder.draw(200, seed=1, counts=counts)
        inferred = model.infer(scenes.image)
        assert np.mean(np.asarray(inferred.count) == scenes.count) >= least
        rendered = np.asarray(model.render(inferred)) > 0.5
        foreground = scenes.image > 127
        assert np.sum(rendered != foreground) < WRONG_PIXELS[model.config.name] * np.sum(foreground)


def test_readme_s_table_is_that_of_the_shipped_results(launch):
    results = sorted(str(path) for path in SHIPPED.glob("*/results*.json"))
    table = launch("table.py", "--format=markdown", *results)
    assert table.returncode == 0, table.stderr
    readme = (ROOT / "README.md").read_text()
    for row in table.stdout.strip().splitlines():
        assert row in readme
