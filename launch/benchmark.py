"""Measures the parts of the system, alternatives side by side; prints JSON lines.

    python launch/benchmark.py                      # the networks of the cpu recipe
    python launch/benchmark.py --model=paper --batch_size=8
    python launch/benchmark.py --what=prior --components=10000
    python launch/benchmark.py --what=input --dataset=multi_mnist/1k
    python launch/benchmark.py --what=playground --visitors=20 --seconds=60

`forward_ms` and `gradient_ms` are medians over repeated calls after compilation; a
gradient includes its forward pass. `share` is a part's share of the whole gradient.

The model is measured twice: as XLA is, and with the flags that the programs set
(`xla_flags`). With LAVAE_XLA_FLAGS=0 or =1 it is measured once, without or with them. So is
the prior: training steps of the recipe `mixture`, in turns with and without the mixture and
with all of its components asked, and its density alone.

The playground is started, and asked by visitors that think for `--think` seconds, on average,
after each answer: how long until it is of use, how many answers a second, and how slow.
"""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import _checkout  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import datasets
from lavae_jax import (
    generative,
    inference,
    input_pipeline,
    locations,
    model,
    neighbours,
    objective,
    packing,
    placement,
    prior,
    vae,
    warmup,
)
from lavae_jax.commands import data_flags, program, xla
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE
from lavae_jax.playground import visitors
from lavae_jax.recipes import mnist1k, mnist10k
from lavae_jax.settings import LavaeSettings, from_config
from lavae_jax.training import step as steps
from lavae_jax.training import tasks
from lavae_jax.vae import GridVAE, GridVAESettings

PARTS = ["model", "prior", "input", "playground"]
WHAT = flags.DEFINE_enum("what", "model", PARTS, "What to measure.")
MODEL = flags.DEFINE_enum("model", "cpu", ["cpu", "paper"], "The networks of which recipe.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images in a batch.", lower_bound=1)
OBJECTS = flags.DEFINE_integer("objects", 3, "Objects in an image at most.", lower_bound=1)
COMPONENTS = flags.DEFINE_integer("components", 10_000, "Of the mixture.", lower_bound=1)
VISITORS = flags.DEFINE_integer("visitors", 1, "Of the playground, at once.", lower_bound=1)
THINK = flags.DEFINE_float("think", 0.0, "Seconds that visitors think.", lower_bound=0)
SECONDS = flags.DEFINE_float("seconds", 2.0, "How long to measure each part.", lower_bound=0.1)
flags.adopt_module_key_flags(data_flags)

KEY = jax.random.key(0)
TEMPERATURE = 0.5


FLAGS_SET = os.environ.get("LAVAE_XLA_FLAGS")  # "0" or "1"; None to measure both


def report(what: str, **values) -> None:
    if FLAGS_SET:
        values["xla_flags"] = FLAGS_SET != "0"
    print(json.dumps({"what": what, **values}), flush=True)


def milliseconds(function, *arguments, seconds: float | None = None) -> float:
    """The median time of a call, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < (seconds or SECONDS.value):
        before = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - before)
    return round(1e3 * float(np.median(times)), 2)


def measure(part: str, form: str, function, first, *rest, whole=None, gradient=True) -> None:
    """Times function(first, *rest), and its gradient with respect to `first`."""

    def pull_back(cotangents, first, *rest):
        _, pull = jax.vjp(lambda a: function(a, *rest), first)
        return pull(cotangents)

    times = {"forward_ms": milliseconds(jax.jit(function), first, *rest)}
    if gradient:
        outputs = jax.eval_shape(function, first, *rest)
        cotangents = jax.tree.map(lambda a: jax.random.normal(KEY, a.shape, a.dtype), outputs)
        times["gradient_ms"] = milliseconds(jax.jit(pull_back), cotangents, first, *rest)
        if whole:
            times["share"] = round(times["gradient_ms"] / whole, 3)
    report(part, form=form, **times)


def with_and_without_flags(measure) -> None:
    """XLA reads its flags when it starts, so each measurement has a process of its own."""
    if FLAGS_SET:
        measure()
        return
    for flags_set in ("0", "1"):
        environment = {**xla.GIVEN, "LAVAE_XLA_FLAGS": flags_set}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)


def measure_model() -> None:
    """Each part on the same batch, with 0 to `objects` objects an image."""
    config = mnist1k.get_config(MODEL.value)
    settings = from_config(LavaeSettings, config.model)
    settings = dataclasses.replace(settings, support="pixels")
    size, slots = BATCH_SIZE.value, OBJECTS.value
    canvas, on_cpu = (64, 64), jax.default_backend() == "cpu"
    lavae = LAVAE(settings, train=LAVAE.NETWORKS)
    variables = model.initialise(lavae, KEY)
    keys = jax.random.split(KEY, size)
    params = variables["params"]
    count = jnp.arange(size) % (slots + 1)
    budget = packing.Budget(slots, -(-size * slots * 2 // 3))
    report(
        "setting",
        model=MODEL.value,
        batch_size=size,
        slots=slots,
        capacity=budget.capacity,
        objects=int(count.sum()),
        device=jax.devices()[0].device_kind,
        num_params=sum(p.size for p in jax.tree.leaves(params)),
    )

    x = (jax.random.uniform(KEY, (size, *canvas, settings.channels)) < 0.05).astype(jnp.float32)
    logits = 4 * jax.random.normal(KEY, (size, canvas[0] * canvas[1]))
    relaxed = locations.sample(keys, logits, slots, TEMPERATURE)
    hard = Locations.hard(relaxed.index)
    objects = packing.pack(count, budget.capacity)
    every_slot = packing.pack(jnp.full(size, slots), slots * size)
    weights = objects.gather(relaxed.weights).reshape(-1, *canvas)
    index = objects.gather(relaxed.index)
    sprite_shape = (settings.sprite_size, settings.sprite_size, settings.channels)
    sprites = jax.random.uniform(KEY, (budget.capacity, *sprite_shape))
    window = model.bind(lambda lavae: 2 * lavae.appearance.radius + 1, lavae)(variables)

    def apply(function, params, *args, lavae=lavae, **kwargs):
        changed = {**variables, "params": params}
        return model.bind_training(function, lavae)(changed, *args, **kwargs)

    def negative_elbo(params, x):
        out, batch_stats = apply(
            objective.elbo, params, x, keys, budget, temperature=TEMPERATURE, force_one=0.1
        )
        return -out.terms.elbo.mean(), batch_stats

    whole = milliseconds(jax.jit(jax.grad(negative_elbo, has_aux=True)), params, x)
    forward = milliseconds(jax.jit(negative_elbo), params, x)
    report("whole", form="relaxed", forward_ms=forward, gradient_ms=whole)

    def location_net(params, x):
        return apply(inference.location_logits, params, x)[0]

    def appearance_net(params, x, where, objects, computed_on):
        appearance = dataclasses.replace(settings.appearance, computed_on=computed_on)
        changed = dataclasses.replace(settings, appearance=appearance)
        changed = LAVAE(changed, train=LAVAE.NETWORKS)
        return apply(inference.appearance, params, x, where, objects, lavae=changed)[0]

    def decoder(params, objects):
        z = jnp.ones((len(objects.valid), settings.latent_size))
        return apply(generative.decode, params, z, objects)[0]

    measure("location_net", "map", location_net, params, x, whole=whole)
    benchmark_auxiliary(config.auxiliary, settings.channels, x, keys)
    for computed_on, where in (("windows", relaxed), ("map", relaxed), ("windows", hard)):
        if (computed_on, settings.appearance.network, on_cpu) == ("map", "dense", True):
            continue  # a 21x21 convolution over whole images takes minutes
        network = functools.partial(appearance_net, computed_on=computed_on)
        name = computed_on if where is relaxed else f"{computed_on}, hard"
        measure("appearance_net", name, network, params, x, where, objects, whole=whole)
    for form, temperature in (("relaxed", TEMPERATURE), ("hard", None)):
        measure(
            "sampler",
            form,
            lambda h, t=temperature: locations.sample(keys, h, slots, t)[1:],
            logits,
            whole=whole,
        )
    measure("decoder", "objects", decoder, params, objects, whole=whole)
    measure("decoder", "every slot", decoder, params, every_slot, whole=whole)
    for method in ("fft", "convolution"):

        def place(pair, image, method=method):
            return placement.place(*pair, image, size, method)

        # On a CPU the gradient of the convolution does not finish within minutes.
        options = {"whole": whole, "gradient": method == "fft" or not on_cpu}
        measure("placement", method, place, (sprites, weights), objects.image, **options)
    for method in ("fft", "matmul"):

        def windows(weights, x, image, method=method):
            return placement.windows(x, weights, image, window, method)

        measure("windows", method, windows, weights, x, objects.image, whole=whole)
    measure(
        "placement",
        "hard",
        lambda s, index, image: placement.place_at(s, index, image, size, canvas),
        sprites,
        index,
        objects.image,
        whole=whole,
    )
    measure(
        "windows",
        "hard",
        lambda x, index, image: placement.windows_at(x, index, image, window),
        x,
        index,
        objects.image,
        whole=whole,
    )


def benchmark_auxiliary(config, channels: int, x, keys) -> None:
    """The warm-up's VAE: its own training, and the map that h_loc is trained on."""
    settings = from_config(GridVAESettings, config, architecture="auxiliary", channels=channels)
    variables = model.initialise(GridVAE(settings), KEY)

    def negative_elbo(params, x):
        bound = model.bind_training(vae.elbo, GridVAE(settings, train=True))
        out, batch_stats = bound({**variables, "params": params}, x, keys)
        return -out.terms.elbo.mean(), batch_stats

    kl_map = model.bind(warmup.mean_kl_map, GridVAE(settings))
    measure("auxiliary", "elbo", negative_elbo, variables["params"], x)
    for shifts in (1, 2):
        form = f"map over {shifts**2} shifts"
        mean_map = functools.partial(kl_map, shifts=shifts)
        measure("auxiliary", form, mean_map, variables, x, keys, gradient=False)


def measure_prior() -> None:
    """Training steps under N(0, I), under a mixture of which each object asks the components that
    it is near to, and under one that is asked as a whole; and the mixture's density alone."""
    config = mnist10k.get_config("mixture")
    config.model.prior.components = COMPONENTS.value
    task = tasks.make(config)
    *_, normal, mixture = task.phases
    size, latent = config.batch_size, config.model.latent_size
    devices = jax.local_device_count()
    shape = (devices, size // devices, 64, 64, config.model.channels)
    x = (jax.random.uniform(KEY, shape) < 0.05).astype(jnp.float32)
    stop = np.zeros(devices, np.int32)
    module = task.module((), None)
    memo = jax.jit(model.bind(normal.memo, module))
    remembered = [memo(model.initialise(module, KEY), part) for part in x]
    found = jax.tree.map(lambda *parts: jnp.stack(parts), *remembered)["found"]
    shape = (*found.support.pixel.shape, neighbours.NEAR)
    near = found.support._replace(near=jax.random.randint(KEY, shape, 0, COMPONENTS.value))

    def stepper(phase, found=found):
        batch = {"image": x, "found": found}
        run = steps.make_train_step(task, phase, KEY)
        state = steps.replicate(steps.init_state(task, KEY))

        def step():
            nonlocal state
            state, metrics = run(state, batch, stop)  # which gives away the state that it is given
            return metrics

        return step

    name = f"mixture of {COMPONENTS.value:,}"
    forms = {
        "N(0, I)": stepper(normal),
        name: stepper(mixture, found._replace(support=near)),
        f"{name}, all of it at each step": stepper(mixture),
    }
    times = {name: [] for name in forms}
    start = time.perf_counter()
    while time.perf_counter() - start < 10 * SECONDS.value:
        for name, step in forms.items():  # in turns, since other work comes and goes
            times[name].append(milliseconds(step, seconds=SECONDS.value / 4))
    medians = {name: round(float(np.median(values)), 2) for name, values in times.items()}
    report("step", batch_size=size, milliseconds=medians)

    for places in (int(size * config.budget.places), 2_000):
        z = jax.random.normal(KEY, (places, latent))
        drawn = prior.Mixture(
            jnp.zeros(COMPONENTS.value), jax.random.normal(KEY, (2 * latent, COMPONENTS.value))
        )
        form = f"mixture of {COMPONENTS.value:,} at {places:,} appearances"
        measure("prior", form, prior.log_density, drawn, z)


def benchmark_input() -> None:
    """Decoded, shuffled and batched training images a second."""
    builder = data_flags.make_builder()
    datasets.prepare(builder)
    source = input_pipeline.open_split(builder, "train")
    batches = input_pipeline.train_batches(source, BATCH_SIZE.value, seed=0)
    next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS.value:
        next(batches)
        count += BATCH_SIZE.value
    report(
        "input",
        dataset=builder.info.full_name,
        batch_size=BATCH_SIZE.value,
        images_per_second=round(count / elapsed),
    )


def measure_playground() -> None:
    """From the command to the first answer; then answers, as visitors get them."""
    before = time.perf_counter()
    playground = str(pathlib.Path(__file__).with_name("playground.py"))
    command = [sys.executable, "-u", playground, "--port=0", "--nobrowser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=xla.GIVEN)
    try:
        said = next((line for line in server.stdout if line.startswith("ready after")), None)
        if said is None:
            raise OSError("the playground did not start")
        url = said.split()[4]
        first = visitors.visit(url, 1, 1.0, 0.0)
        report("start", seconds=round(time.perf_counter() - before - 1.0, 1), said=said.strip())
        if any(answer.error for answer in first):
            raise OSError(f"the playground answers {first}")
        visitors.wait_until_all_are_warm(url)
        report("all models warm", seconds=round(time.perf_counter() - before, 1))
        answers = visitors.visit(url, VISITORS.value, SECONDS.value, THINK.value)
    finally:
        server.terminate()
        server.wait()
    kinds = sorted({answer.what for answer in answers})
    for what in ("all", *kinds):
        times = [1e3 * a.seconds for a in answers if what in ("all", a.what)]
        report(
            what,
            visitors=VISITORS.value,
            answers=len(times),
            answers_per_second=round(len(times) / SECONDS.value, 1),
            median_ms=round(float(np.median(times)), 1),
            slowest_ms=round(max(times), 1),
            errors=sum(a.error is not None for a in answers if what in ("all", a.what)),
        )


def main():
    if WHAT.value == "input":
        benchmark_input()
    elif WHAT.value == "playground":
        measure_playground()
    else:
        with_and_without_flags({"model": measure_model, "prior": measure_prior}[WHAT.value])


if __name__ == "__main__":
    program.run(main)
