"""What a TPU makes of float32: a function evaluated with its operands rounded.

By default a TPU's matrix unit rounds the operands of products and convolutions to bfloat16
and sums in float32. `on_tpu(f)` is `f` with that rounding wherever a product does not request
more, and with the forms that are chosen for accelerators.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

PRODUCTS = ("dot_general", "conv_general_dilated")
CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
EXACT = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def on_tpu(function):
    """`function` of arrays, as a TPU computes it."""

    @functools.wraps(function)
    def rounded(*args):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        evaluate = jax.jit(lambda *flat: _evaluate(closed.jaxpr, closed.consts, flat))
        flat = evaluate(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), flat)

    return rounded


def _round(a: jax.Array) -> jax.Array:
    return a.astype(jnp.bfloat16).astype(a.dtype)


def _evaluate(jaxpr, consts, args):
    values = dict(zip(jaxpr.constvars + jaxpr.invars, [*consts, *args], strict=True))

    def read(variable):
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(v) for v in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(equation, inputs):
    name, params = equation.primitive.name, equation.params
    if name == "platform_index":
        return [_default_branch(params["platforms"])]
    if name == "cond":
        index, *operands = inputs
        branch = params["branches"][index]
        return _evaluate(branch.jaxpr, branch.consts, operands)
    if name in CALLS:
        inner = params[CALLS[name]]
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    if name in PRODUCTS and params["precision"] != EXACT:
        inputs = [_round(a) for a in inputs]
    out = equation.primitive.bind(*inputs, **params)
    return out if equation.primitive.multiple_results else [out]


def _default_branch(platforms):
    return next(i for i, names in enumerate(platforms) if names is None)
