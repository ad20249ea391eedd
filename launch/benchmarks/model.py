"""Times each part of LAVAE: networks, sampler, placement, windows, and the whole gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks import timing
from lavae_jax import (
    generative,
    inference,
    locations,
    model,
    objective,
    packing,
    placement,
    vae,
    warmup,
)
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE
from lavae_jax.recipes import mnist1k
from lavae_jax.settings import LavaeSettings, from_config
from lavae_jax.vae import AuxiliarySettings

MODEL = flags.DEFINE_enum("model", "cpu", ["cpu", "paper"], "The recipe whose networks are timed.")
OBJECTS = flags.DEFINE_integer(
    "objects", 3, "The largest number of objects in an image.", lower_bound=1
)

TEMPERATURE = 0.5


def main() -> None:
    """Measures the parts without and with the XLA flags."""
    timing.with_and_without_flags(measure_parts)


def measure_parts() -> None:
    """Times each part on the same batch, with 0 to `--objects` objects per image."""
    config, key = mnist1k.get_config(MODEL.value), jax.random.key(0)
    settings = from_config(LavaeSettings, config.model)
    settings = dataclasses.replace(settings, support="pixels")
    size, slots = timing.BATCH_SIZE.value, OBJECTS.value
    canvas, on_cpu = (64, 64), jax.default_backend() == "cpu"
    lavae = LAVAE(settings, train=LAVAE.NETWORKS)
    variables = model.initialise(lavae, key)
    keys = jax.random.split(key, size)
    params = variables["params"]
    count = jnp.arange(size) % (slots + 1)
    budget = packing.Budget(slots, -(-size * slots * 2 // 3))
    timing.report(
        "setting",
        model=MODEL.value,
        batch_size=size,
        slots=slots,
        capacity=budget.capacity,
        objects=int(count.sum()),
        device=jax.devices()[0].device_kind,
        num_params=sum(p.size for p in jax.tree.leaves(params)),
    )

    x = (jax.random.uniform(key, (size, *canvas, settings.channels)) < 0.05).astype(jnp.float32)
    logits = 4 * jax.random.normal(key, (size, canvas[0] * canvas[1]))
    relaxed = locations.sample(keys, logits, slots, TEMPERATURE)
    hard = Locations.hard(relaxed.index)
    objects = packing.pack(count, budget.capacity)
    every_slot = packing.pack(jnp.full(size, slots), slots * size)
    weights = objects.gather(relaxed.weights).reshape(-1, *canvas)
    index = objects.gather(relaxed.index)
    sprite_shape = (settings.sprite_size, settings.sprite_size, settings.channels)
    sprites = jax.random.uniform(key, (budget.capacity, *sprite_shape))
    window = model.bind(lambda lavae: 2 * lavae.appearance.radius + 1, lavae)(variables)

    def apply(function, params, *args, lavae=lavae, **kwargs):
        changed = {**variables, "params": params}
        return model.bind_training(function, lavae)(changed, *args, **kwargs)

    def negative_elbo(params, x):
        out, batch_stats = apply(
            objective.elbo, params, x, keys, budget, temperature=TEMPERATURE, force_one=0.1
        )
        return -out.terms.elbo.mean(), batch_stats

    whole = timing.milliseconds(jax.jit(jax.grad(negative_elbo, has_aux=True)), params, x)
    forward = timing.milliseconds(jax.jit(negative_elbo), params, x)
    timing.report("whole", form="relaxed", forward_ms=forward, gradient_ms=whole)

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

    timing.measure("location_net", "map", location_net, params, x, whole=whole)
    measure_auxiliary(config.auxiliary, settings.channels, x, keys)
    for computed_on, where in (("windows", relaxed), ("map", relaxed), ("windows", hard)):
        if (computed_on, settings.appearance.network, on_cpu) == ("map", "dense", True):
            continue  # a 21x21 convolution over whole images takes minutes
        network = functools.partial(appearance_net, computed_on=computed_on)
        name = computed_on if where is relaxed else f"{computed_on}, hard"
        timing.measure("appearance_net", name, network, params, x, where, objects, whole=whole)
    for form, temperature in (("relaxed", TEMPERATURE), ("hard", None)):
        timing.measure(
            "sampler",
            form,
            lambda h, t=temperature: locations.sample(keys, h, slots, t)[1:],
            logits,
            whole=whole,
        )
    timing.measure("decoder", "objects", decoder, params, objects, whole=whole)
    timing.measure("decoder", "every slot", decoder, params, every_slot, whole=whole)
    for method in ("fft", "convolution"):

        def place(pair, image, method=method):
            return placement.place(*pair, image, size, method)

        # On a CPU the gradient of the convolution does not finish within minutes.
        options = {"whole": whole, "gradient": method == "fft" or not on_cpu}
        timing.measure("placement", method, place, (sprites, weights), objects.image, **options)
    for method in ("fft", "matmul"):

        def windows(weights, x, image, method=method):
            return placement.windows(x, weights, image, window, method)

        timing.measure("windows", method, windows, weights, x, objects.image, whole=whole)
    timing.measure(
        "placement",
        "hard",
        lambda s, index, image: placement.place_at(s, index, image, size, canvas),
        sprites,
        index,
        objects.image,
        whole=whole,
    )
    timing.measure(
        "windows",
        "hard",
        lambda x, index, image: placement.windows_at(x, index, image, window),
        x,
        index,
        objects.image,
        whole=whole,
    )


def measure_auxiliary(config, channels: int, x, keys) -> None:
    """Times the auxiliary VAE of the warm-up: its training, and the KL map for training h_loc.

    Args:
        config: the settings of the auxiliary VAE.
        channels: C.
        x: images, [B, H, W, C].
        keys: a key for each image, [B].
    """
    settings = from_config(AuxiliarySettings, config, channels=channels)
    variables = model.initialise(settings.build(), keys[0])

    def negative_elbo(params, x):
        bound = model.bind_training(vae.elbo, settings.build(train=True))
        out, batch_stats = bound({**variables, "params": params}, x, keys)
        return -out.terms.elbo.mean(), batch_stats

    kl_map = model.bind(warmup.mean_kl_map, settings.build())
    timing.measure("auxiliary", "elbo", negative_elbo, variables["params"], x)
    for shifts in (1, 2):
        form = f"map over {shifts**2} shifts"
        mean_map = functools.partial(kl_map, shifts=shifts)
        timing.measure("auxiliary", form, mean_map, variables, x, keys, gradient=False)
