"""A single step of training or evaluation, pmapped over all devices of all processes."""

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
Devices = Sequence[jax.Device]  # None stands for all of them


class TrainState(NamedTuple):
    """The state of a run.

    Attributes:
        step: steps completed so far.
        params: the parameters.
        batch_stats: the batch statistics.
        opt_state: the state of the optimiser of each part, by the part's path.
        saved: what each phase saved when it began, by the phase's name.
    """

    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: dict[str, optax.OptState]
    saved: dict[str, Any]


def init_state(task: Task, key: chex.PRNGKey) -> TrainState:
    """Makes the state at step 0.

    Args:
        task: the model and its phases.
        key: a random key.

    Returns:
        The state, without an axis of devices.
    """
    variables = model.initialise(task.module((), None), key)
    params = variables["params"]
    parts = sorted({part for phase in task.phases for part in phase.learning_rates})
    opt_state = {part: _OPTIMIZER.init(model.get_part(params, part)) for part in parts}
    saved = {phase.name: phase.saved for phase in task.phases if phase.saved is not None}
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, variables["batch_stats"], opt_state, saved)


# Adamax (App. B), without the learning rates, which belong to the phases. Each part has its own
# optimiser, so that its moments carry over from one phase to the next. With optax.partition, the
# gradients of frozen parts would be computed, and the structure of the state would differ between
# phases.
_OPTIMIZER = optax.scale_by_adamax()


def variables_of(state: TrainState) -> model.Variables:
    """Selects the variables of the module.

    Args:
        state: the state of a run.

    Returns:
        The parameters and the batch statistics.
    """
    return {"params": state.params, "batch_stats": state.batch_stats}


def begin_phase(state: TrainState, phase: Phase, prepared: Prepared) -> TrainState:
    """Makes the state that a phase begins with, on the host.

    Args:
        state: the state after the previous phase, without an axis of devices.
        phase: the phase.
        prepared: its new parameters, and what it saves.

    Returns:
        The new state.
    """
    params = state.params
    for part, value in prepared.params.items():
        params = model.with_part(params, part, value)
    if phase.saved is None:
        return state._replace(params=params)
    return state._replace(params=params, saved={**state.saved, phase.name: prepared.saved})


def make_train_step(
    task: Task, phase: Phase, key: chex.PRNGKey, devices: Devices | None = None
) -> Callable:
    """Makes the training step of a phase.

    A batch has the `image`, and what the phase has prepared: the batch's part of the cache, and the
    constants. A step whose loss or gradient is not finite leaves the state unchanged, except for
    `step`. The argument `stop` is whether this process received a request to stop; the metric
    `stop` is whether any process did.

    Args:
        task: the model and its phases.
        phase: the phase.
        key: the random key of all training steps.
        devices: the devices to run on; None for all.

    Returns:
        (state, batch, stop) -> (state, metrics), each with a leading axis of devices. The old state
        is donated.
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

        # On a CPU, this is also faster than an unconditional update: inside a branch, it needs no
        # copy of the state.
        kept = lax.cond(finite, updated, lambda state: state, state)
        metrics["stop"] = lax.pmax(stop, AXIS)
        return kept._replace(step=state.step + 1), metrics

    return jax.pmap(train_step, axis_name=AXIS, donate_argnums=0, devices=devices)


def _norm(tree: Any) -> jax.Array:
    """The joint norm of all arrays, by dot products: XLA does not vectorise sums on a CPU."""
    exact = lax.Precision.HIGHEST
    return jnp.sqrt(sum(jnp.vdot(a, a, precision=exact) for a in jax.tree.leaves(tree)))


def make_eval_step(task: Task, key: chex.PRNGKey, devices: Devices | None = None) -> Callable:
    """Makes the evaluation step.

    Args:
        task: the model and its metrics.
        key: the random key of all evaluations.
        devices: the devices to run on; None for all.

    Returns:
        A function of (params, batch_stats, batch, index of the batch), each with a leading axis of
        devices. It returns, for each metric, the sum over the images of all devices for which the
        metric is defined, and the number of these images.
    """
    evaluate = model.bind(task.evaluate, task.module((), AXIS))

    def eval_step(params, batch_stats, batch, number):
        keys = _keys_of_images(key, number, len(batch["image"]))
        variables = {"params": params, "batch_stats": batch_stats}
        metrics = evaluate(variables, batch["image"], batch.get("count"), keys)

        def total(metric: jax.Array | Masked) -> tuple[jax.Array, jax.Array]:
            if isinstance(metric, Masked):
                value, has_it = metric.value, batch["valid"] & metric.valid
            else:
                value, has_it = metric, batch["valid"]
            return jnp.sum(jnp.where(has_it, value, 0)), has_it.astype(float).sum()

        return lax.psum({name: total(metric) for name, metric in metrics.items()}, AXIS)

    return jax.pmap(eval_step, axis_name=AXIS, devices=devices)


def _keys_of_images(key: chex.PRNGKey, batch: jax.Array, size: int) -> chex.PRNGKey:
    """One key for each image of this device, by its index in the global batch."""
    key = jax.random.fold_in(key, batch)
    index = lax.axis_index(AXIS) * size + jnp.arange(size)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def replicate(tree: Any) -> Any:
    """Copies arrays to every local device, in the layout in which steps return them.

    With arrays straight from the host, every step would be compiled twice.

    Args:
        tree: arrays.

    Returns:
        The arrays with a leading axis of local devices.
    """
    if not jax.tree.leaves(tree):
        return tree  # pmap needs an array
    n = jax.local_device_count()
    stacked = jax.tree.map(lambda a: np.broadcast_to(a, (n, *np.shape(a))), tree)
    return jax.pmap(lambda a: a, axis_name=AXIS)(stacked)


def unreplicate(tree: Any) -> Any:
    """Fetches the arrays of the first local device.

    Args:
        tree: arrays with a leading axis of devices.

    Returns:
        The arrays on the host, without that axis.
    """
    return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)).reshape(a.shape[1:]), tree)
