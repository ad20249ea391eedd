"""Runs of next to no size, for what tests the loop and not the model."""

import contextlib
import io
from unittest import mock

import numpy as np
from small_models import get_config

import datasets
from lavae_jax import checkpoints
from lavae_jax.training import files, loop, step

OVERRIDES = "canvas=24,patch=7,max_count=2,crowd=3,num_train=120,num_test=8,num_crowd=8"
FIELDS = {
    "dataset.overrides": OVERRIDES,
    "dataset.held_out": 20,
    "batch_size": 4,
    "log_every_steps": 1,
    "eval_every_steps": 0,
}
LAVAE_FIELDS = {
    "model.sprite_size": 9,
    "model.latent_size": 2,
    "model.location.width": 4,
    "model.location.head_width": 4,
    "model.location.blocks": 1,
    "model.appearance.window": 5,
    "model.appearance.hidden": (4,),
    "model.decoder.hidden": (4,),
    "auxiliary.width": 4,
}
PHASED = ("cpu", "mixture", "sleep")  # recipes
PHASED_FIELDS = {
    "model.threshold": -99.0,  # a network that has hardly been trained finds objects, too
    "curriculum.appearance.steps": 2,
}
SLEEP_FIELDS = {
    "model.peak_radius": 9,  # and those that it finds are far from each other
    "curriculum.sleep.threshold": -99.0,
    "curriculum.sleep.objects": 8,
    "curriculum.sleep.max_objects": 2,
    "curriculum.overlap.steps": 2,
}
MIXTURE_FIELDS = {"model.prior.components": 5, "curriculum.mixture.steps": 4}


def fields(name="mnist1k", recipe="tiny", steps=4, warmup=None, **more):
    """Changes to a config that make it small.

    warmup: the steps of the warm-up and of the annealing after it; or, in the recipes cpu and
    mixture, of the phases `auxiliary` and `peaks`; in sleep, of `auxiliary` and `sleep`.
    """
    changes = {**FIELDS, "num_train_steps": steps}
    if name.startswith("baseline"):
        changes |= {"curriculum.crops.steps": 0, "curriculum.elbo.steps": 1_000_000}
    else:
        first, second = warmup or (0, 0)
        changes |= LAVAE_FIELDS
        changes |= (
            {
                "curriculum.auxiliary.steps": first,
                f"curriculum.{'sleep' if recipe == 'sleep' else 'peaks'}.steps": second,
            }
            if recipe in PHASED
            else {
                "curriculum.warmup.steps": first + second,
                "curriculum.warmup.anneal_steps": second,
                "curriculum.elbo.steps": 1_000_000,
            }
        )
        changes |= PHASED_FIELDS if recipe in PHASED else {}
        changes |= SLEEP_FIELDS if recipe == "sleep" else {}
        changes |= MIXTURE_FIELDS if recipe == "mixture" else {}
    return changes | more


def config(name="mnist1k", recipe="tiny", **kwargs):
    made = get_config(name, recipe)
    made.update_from_flattened_dict(fields(name, recipe, **kwargs))
    return made


def flags(name="mnist1k", recipe="tiny", **kwargs):
    changes = fields(name, recipe, **kwargs)
    return [
        f"--config=configs/{name}.py:{recipe}",
        *(f"--config.{field}={value}" for field, value in changes.items()),
    ]


class Drawn:
    """Scenes in memory, as a source."""

    varies = False

    def __init__(self, config, seed, size):
        options = {**datasets.options(config.dataset), "data_dir": None}
        self.scenes = datasets.make_builder(**options).draw(size, seed)

    def __len__(self):
        return len(self.scenes.count)

    def read(self, index, draws=None):
        image = (self.scenes.image[index] > 127).astype(np.float32)
        return {"image": image, "count": self.scenes.count[index]}


_made = {}  # steps and initial states, by what they depend on


@contextlib.contextmanager
def _made_once(config):
    """Runs of this process that differ in nothing that is compiled share it: most of a short
    run's time goes into tracing. Their pictures have one image."""
    fields = files.flatten(files.plain(config))
    what = tuple(
        (name, str(value)) for name, value in fields.items() if name not in files.MAY_CHANGE
    )

    def once(make):
        def made(task, *arguments):
            phases = tuple((phase.name, bool(phase.prepare)) for phase in (*arguments[:-1],))
            key = (make.__name__, what, phases)
            if key not in _made:
                _made[key] = make(task, *arguments)
            return _made[key]

        return made

    with contextlib.ExitStack() as patches:
        for name in ("init_state", "make_train_step", "make_eval_step"):
            shared = once(getattr(step, name))
            patches.enter_context(mock.patch.object(step, name, shared))
        # Pictures take longer to draw than most steps.
        patches.enter_context(mock.patch.object(loop, "PICTURED", 1))
        yield


def train(config, workdir) -> str:
    """Runs the loop in this process; returns what it said."""
    said = io.StringIO()
    held_out = config.dataset.held_out
    with contextlib.redirect_stdout(said), _made_once(config):
        data = loop.Data(Drawn(config, 0, 100), Drawn(config, 1, held_out))
        code = loop.train(config, str(workdir), lambda: data, "the same command")
    assert code == 0
    return said.getvalue()


def newest(workdir):
    return checkpoints.load_newest(workdir / "checkpoints")


def metrics(workdir, name="loss"):
    records = files.read_metrics(workdir / "metrics.jsonl")
    return {record["step"]: record[name] for record in records if name in record}
