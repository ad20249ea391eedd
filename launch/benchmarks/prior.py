"""Times training steps of the recipe `mixture`, and the log density of its prior alone."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import timing
from lavae_jax import model, neighbours, prior
from lavae_jax.recipes import mnist10k
from lavae_jax.training import step as steps
from lavae_jax.training import tasks
from lavae_jax.training.loop import OneBatch

COMPONENTS = flags.DEFINE_integer(
    "components", 10_000, "The number of components of the mixture.", lower_bound=1
)


def main() -> None:
    """Measures the steps without and with the XLA flags."""
    timing.with_and_without_flags(measure_steps)


def measure_steps() -> None:
    """Times training steps under different priors, and the log density of a mixture alone.

    The priors are N(0, I), a mixture evaluated at the components near each object, and a mixture
    evaluated at all components.
    """
    config, key = mnist10k.get_config("mixture"), jax.random.key(0)
    config.model.prior.components = COMPONENTS.value
    task = tasks.make(config)
    *_, normal, mixture = task.phases
    size, latent = config.batch_size, config.model.latent_size
    devices = jax.local_device_count()
    shape = (devices, size // devices, 64, 64, config.model.channels)
    x = (jax.random.uniform(key, shape) < 0.05).astype(jnp.float32)
    stop = np.zeros(devices, np.int32)
    module = task.module((), None)
    variables = model.initialise(module, key)
    caches = [normal.prepare(module, variables, OneBatch(part, False), None).cache for part in x]
    located = jax.tree.map(lambda *parts: jnp.stack(parts), *caches)["located"]
    shape = (*located.pixel.shape, neighbours.NEAR)
    near = located._replace(near=jax.random.randint(key, shape, 0, COMPONENTS.value))

    def stepper(phase, located=located):
        batch = {"image": x, "located": located}
        run = steps.make_train_step(task, phase, key)
        state = steps.replicate(steps.init_state(task, key))

        def step():
            nonlocal state
            state, metrics = run(state, batch, stop)  # donates the old state
            return metrics

        return step

    name = f"mixture of {COMPONENTS.value:,}"
    forms = {
        "N(0, I)": stepper(normal),
        name: stepper(mixture, near),
        f"{name}, all components at each step": stepper(mixture),
    }
    times = {name: [] for name in forms}
    start = time.perf_counter()
    while time.perf_counter() - start < 10 * timing.SECONDS.value:
        for name, step in forms.items():  # alternate, since the load of the machine varies
            times[name].append(timing.milliseconds(step, seconds=timing.SECONDS.value / 4))
    medians = {name: round(float(np.median(values)), 2) for name, values in times.items()}
    timing.report("step", batch_size=size, milliseconds=medians)

    for num_objects in (int(size * config.budget.objects_per_image), 2_000):
        z = jax.random.normal(key, (num_objects, latent))
        drawn = prior.Mixture(
            jnp.zeros(COMPONENTS.value), jax.random.normal(key, (2 * latent, COMPONENTS.value))
        )
        form = f"mixture of {COMPONENTS.value:,} at {num_objects:,} appearances"
        timing.measure("prior", form, prior.log_density, drawn, z)
