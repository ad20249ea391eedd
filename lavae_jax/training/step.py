"""One step of training and of evaluation, pmapped over all devices of all processes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from lavae_jax import model
from lavae_jax.diagnostics import Masked
from lavae_jax.training.phases import Phase, Prepared, Task

AXIS = "devices"
Devices = Sequence[jax.Device]  # all of them, if not given


class TrainState(NamedTuple):
    step: jax.Array  # steps made so far
    params: Any
    batch_stats: Any
    opt_state: dict[str, optax.OptState]  # by the part that it belongs to
    saved: dict[str, Any]  # what phases save when they begin, by their names


def init_state(task: Task, key: chex.PRNGKey) -> TrainState:
    variables = model.initialise(task.module((), None), key)
    params = variables["params"]
    parts = sorted({part for phase in task.phases for part in phase.learning_rates})
    opt_state = {part: _OPTIMIZER.init(model.get_part(params, part)) for part in parts}
    saved = {phase.name: phase.saved for phase in task.phases if phase.saved is not None}
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, variables["batch_stats"], opt_state, saved)


# Adamax (App. B); the phases have the learning rates. Each part has an optimiser of its own, so
# that its moments last from one phase to the next. With optax.partition, frozen parts would have
# gradients, and every phase would have a state of another structure.
_OPTIMIZER = optax.scale_by_adamax()


def variables_of(state: TrainState) -> model.Variables:
    return {"params": state.params, "batch_stats": state.batch_stats}


def begin_phase(state: TrainState, phase: Phase, prepared: Prepared) -> TrainState:
    """The state that a phase begins with, on the host."""
    params = state.params
    for part, value in prepared.params.items():
        params = model.with_part(params, part, value)
    if phase.saved is None:
        return state._replace(params=params)
    return state._replace(params=params, saved={**state.saved, phase.name: prepared.saved})


def make_train_step(
    task: Task, phase: Phase, key: chex.PRNGKey, devices: Devices | None = None
) -> Callable:
    """(state, batch, stop), each with a leading axis of devices -> (state, metrics).

    A batch has an `image`, and what the phase has prepared: its cache for the batch, and constants.

    A step whose loss or gradient is not finite leaves the state as it was. `stop` is
    whether the process received a request to stop; the metrics tell whether any process did.
    """
    parts, start = tuple(phase.learning_rates), task.start_of(phase)
    apply = model.bind_training(phase.loss, task.module(parts, AXIS))

    def train_step(state: TrainState, batch: dict[str, Any], stop: jax.Array):
        x, prepared = batch["image"], {name: v for name, v in batch.items() if name != "image"}
        keys = _keys_of_images(key, state.step, len(x))
        phase_step = state.step - start

        def loss(trained):
            params = state.params
            for part, value in trained.items():
                params = model.with_part(params, part, value)
            variables = {"params": params, "batch_stats": state.batch_stats}
            (total, metrics), batch_stats = apply(variables, x, keys, phase_step, **prepared)
            return total, (batch_stats, metrics)

        trained = {part: model.get_part(state.params, part) for part in parts}
        (total, (batch_stats, metrics)), grads = jax.value_and_grad(loss, has_aux=True)(trained)
        grads, metrics = lax.pmean((grads, {"loss": total, **metrics}), AXIS)
        metrics |= {f"gradient_norm_{part}": _norm(grad) for part, grad in grads.items()}
        finite = jnp.all(jnp.stack([jnp.isfinite(m) for m in metrics.values()]))

        def updated(state: TrainState) -> TrainState:
            params, opt_state = state.params, dict(state.opt_state)
            for part, grad in grads.items():
                updates, opt_state[part] = _OPTIMIZER.update(grad, opt_state[part])
                rate = phase.learning_rates[part](phase_step)
                new = jax.tree.map(
                    lambda p, u, rate=rate: p - rate * u, model.get_part(params, part), updates
                )
                params = model.with_part(params, part, new)
            return TrainState(state.step, params, batch_stats, opt_state, state.saved)

        # On a CPU this is faster than no choice, too: in a branch of its own, the update needs no
        # copy of the state.
        kept = lax.cond(finite, updated, lambda state: state, state)
        metrics["stop"] = lax.pmax(stop, AXIS)
        return kept._replace(step=state.step + 1), metrics

    return jax.pmap(train_step, axis_name=AXIS, donate_argnums=0, devices=devices)


def _norm(tree: Any) -> jax.Array:
    """Of all numbers together; by products, because XLA does not vectorise sums on a CPU."""
    exact = lax.Precision.HIGHEST
    return jnp.sqrt(sum(jnp.vdot(a, a, precision=exact) for a in jax.tree.leaves(tree)))


def make_eval_step(task: Task, key: chex.PRNGKey, devices: Devices | None = None) -> Callable:
    """(params, batch_stats, batch, number of the batch) -> for each metric, the sum over the
    images of all devices that have it, and their number."""
    evaluate = model.bind(task.evaluate, task.module((), AXIS))

    def eval_step(params, batch_stats, batch, number):
        keys = _keys_of_images(key, number, len(batch["image"]))
        variables = {"params": params, "batch_stats": batch_stats}
        metrics = evaluate(variables, batch["image"], batch.get("count"), keys)

        def total(metric: jax.Array | Masked) -> tuple[jax.Array, jax.Array]:
            has_it = batch["valid"]
            if isinstance(metric, Masked):
                metric, has_it = metric.value, has_it & metric.valid
            return jnp.sum(jnp.where(has_it, metric, 0)), has_it.astype(float).sum()

        return lax.psum({name: total(metric) for name, metric in metrics.items()}, AXIS)

    return jax.pmap(eval_step, axis_name=AXIS, devices=devices)


def _keys_of_images(key: chex.PRNGKey, batch: jax.Array, size: int) -> chex.PRNGKey:
    """One key for each image of this device, by its index in the global batch."""
    key = jax.random.fold_in(key, batch)
    index = lax.axis_index(AXIS) * size + jnp.arange(size)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def replicate(tree: Any) -> Any:
    """The same arrays on every local device, laid out as steps return them.

    Arrays that come straight from the host would have every step compiled twice.
    """
    if not jax.tree.leaves(tree):
        return tree  # pmap needs an array
    n = jax.local_device_count()
    stacked = jax.tree.map(lambda a: np.broadcast_to(a, (n, *np.shape(a))), tree)
    return jax.pmap(lambda a: a, axis_name=AXIS)(stacked)


def unreplicate(tree: Any) -> Any:
    """The first local device's arrays, on the host."""
    return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)).reshape(a.shape[1:]), tree)
