"""The steps of a run, compiled by the TPU's own compiler where there is no TPU."""

import importlib.util
import os

import jax
import jax.numpy as jnp
import micro
import pytest
from conftest import ROOT
from jax.experimental.compilation_cache import compilation_cache

from lavae_jax.training import compile_check
from lavae_jax.training.compile_check import Chip, Report

# A folder that holds libtpu, for which jax would look at every start if it were installed.
LIBTPU = os.environ.get("LAVAE_LIBTPU")


@pytest.mark.skipif(not LIBTPU, reason="LAVAE_LIBTPU names no folder with libtpu")
def test_the_steps_of_a_small_run_compile_for_a_tpu(launch_anew, monkeypatch):
    """The step after the warm-up is a part of that within it, and left out."""
    monkeypatch.chdir(ROOT)
    flags = [*micro.flags(warmup=(1, 1)), "--phase=warmup,evaluation"]
    result = launch_anew("compile_check.py", *flags, PYTHONPATH=LIBTPU)
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ") for line in result.stdout.splitlines() if "v5e:2x2" in line]
    assert [row[2] for row in rows] == ["warmup", "evaluation"]
    for row in rows:
        assert row[3].endswith(" s")  # that it took to compile
        assert float(row[5]) > 0  # MB read and written


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed here"
)
def test_without_the_compiler_one_sentence_says_what_to_install():
    with pytest.raises(compile_check.CompileCheckError, match=r"pip install --target=\S+ 'libtpu"):
        compile_check.tpu_devices("v5e:2x2")


@pytest.mark.parametrize("recipe", ["tiny", "mixture", "sleep"])
def test_every_operation_can_be_lowered_for_gpus(recipe):
    config = micro.config(recipe=recipe, warmup=(1, 1))
    names = []
    for program in compile_check.programs(config, (24, 24)):
        assert compile_check.lower_for(program, "cuda") > 100
        names.append(program.name)
    phases = {"tiny": ["warmup", "elbo"]}
    phases["mixture"] = ["auxiliary", "peaks", "appearance", "mixture"]
    phases["sleep"] = ["auxiliary", "sleep", "appearance", "overlap"]
    assert names == [*phases[recipe], "evaluation"]


def test_a_batch_that_the_slice_cannot_split_is_refused():
    program = next(compile_check.programs(micro.config(), (24, 24)))
    with pytest.raises(compile_check.CompileCheckError, match=r"batch_size=4 .* over 16 devices"):
        program.arguments(16)


def test_the_compilation_cache_is_off_for_what_is_timed_and_on_afterwards(tmp_path):
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def compile_new(number):
        jax.jit(lambda x: x + number).lower(scalar).compile()
        return entries()

    def entries():
        return len(list(tmp_path.iterdir()))

    def make(devices):
        return jax.pmap(lambda x: 3 * x, devices=devices)

    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    try:
        cached = compile_new(1)
        assert cached > 0
        shape = jax.ShapeDtypeStruct((1,), jnp.float32)
        program = compile_check.Program("tripled", make, lambda devices: (shape,))
        assert compile_check.compile_for(program, jax.local_devices()[:1]).memory > 0
        assert entries() == cached
        assert jax.config.jax_enable_compilation_cache
        assert compile_new(2) > cached
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()


def test_bytes_sent_by_collectives_are_read_from_the_program():
    program = """
      %all-reduce.1 = (f32[3,4]{1,0}, bf16[10]{0}) all-reduce(%a, %b), to_apply=%add
      %all-reduce-start = f32[] all-reduce-start(%c), to_apply=%add
      %fusion = f32[99]{0} fusion(%all-reduce.1)
    """
    assert compile_check.bytes_sent(program) == 4 * 12 + 2 * 10 + 4


def test_the_least_time_is_the_longer_of_arithmetic_and_memory_traffic():
    chip = Chip(flops=100.0, bandwidth=10.0, memory=1.0)
    assert Report(0, 200.0, 5.0, 0, 0).least_seconds(chip) == 2.0
    assert Report(0, 50.0, 30.0, 0, 0).least_seconds(chip) == 3.0
