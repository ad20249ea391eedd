"""Settings of a LAVAE, as plain numbers and strings: the `model` part of a run's config.

The paper's values are in `lavae_jax/recipes/common.py`, not here.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from lavae_jax import counting

T = TypeVar("T")


def check_choices(owner: str, settings: Any) -> None:
    """Checks that fields of type Literal have one of their values.

    Args:
        owner: the name of the settings in error messages.
        settings: a dataclass.

    Raises:
        ValueError: if a field has another value.
    """
    for name, type_ in typing.get_type_hints(type(settings)).items():
        if typing.get_origin(type_) is Literal:
            choices, value = typing.get_args(type_), getattr(settings, name)
            if value not in choices:
                there_are = ", ".join(map(repr, choices))
                raise ValueError(f"{owner} {name}={value!r}: expected one of {there_are}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocationSettings:
    """h_loc: a residual network and a convolutional head, after a space-to-depth stem.

    Attributes:
        width: channels of the residual blocks.
        blocks: the number of residual blocks.
        head_width: channels of the head.
        space_to_depth: f, the side of the cells of the stem, in pixels.
        blur_logits: whether the logits are blurred over the width of a cell. After the stem, the
            last layer has a channel for each of the f² pixels of a cell, and the one with the
            largest bias would win wherever there is an object; the blur weights all equally.
    """

    width: int
    blocks: int
    head_width: int
    space_to_depth: int
    blur_logits: bool = False

    def __post_init__(self) -> None:
        if self.space_to_depth < 1:
            raise ValueError(f"location space_to_depth={self.space_to_depth} must be at least 1")

    @property
    def reach(self) -> int:
        """The radius of the receptive field of a logit, in pixels, rounded up to whole cells."""
        layers, factor = 2 * self.blocks + 3, self.space_to_depth
        return (layers + 1 + self.blur_logits) * factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppearanceSettings:
    """h_app.

    Attributes:
        network: "residual" has `width` and `blocks`; "dense" has `window` and `hidden`.
        computed_on: the "map" of all pixels, to be read at the locations, as in the paper; or the
            "windows" around the locations alone.
        width: channels of the residual blocks.
        blocks: the number of residual blocks.
        window: the side of the receptive field, in pixels, odd.
        hidden: the widths of the layers.
    """

    network: Literal["residual", "dense"]
    computed_on: Literal["map", "windows"]
    width: int = 0
    blocks: int = 0
    window: int = 0
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choices("appearance", self)
        if self.network == "dense" and (self.window < 1 or self.window % 2 == 0):
            raise ValueError(f"appearance window={self.window} must be odd")

    @property
    def radius(self) -> int:
        """The radius of the receptive field, in pixels."""
        return self.window // 2 if self.network == "dense" else 2 * self.blocks + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSettings:
    """f_sprite.

    Attributes:
        network: "residual", as in the paper, has `width`, `blocks`, `seed_size` and
            `seed_channels`; "dense" has `hidden`.
        width: channels of the residual blocks.
        blocks: the number of residual blocks.
        seed_size: height and width of the output of the fully connected layer.
        seed_channels: channels of the output of the fully connected layer.
        hidden: the widths of the layers.
    """

    network: Literal["residual", "dense"]
    width: int = 0
    blocks: int = 0
    seed_size: int = 0
    seed_channels: int = 0
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choices("decoder", self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PriorSettings:
    """p(z_app).

    Attributes:
        kind: "normal", the paper's N(0, I), or "mixture", of Gaussians.
        components: the number of Gaussians of a mixture; 0 for N(0, I).
    """

    kind: Literal["normal", "mixture"]
    components: int = 0

    def __post_init__(self) -> None:
        check_choices("prior", self)
        if (self.kind == "mixture") != (self.components > 0):
            raise ValueError(
                f"prior components={self.components}: a mixture has at least 1, N(0, I) has none"
            )

    def __str__(self) -> str:
        return f"mixture of {self.components:,}" if self.components else self.kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class LavaeSettings:
    """The architecture and constants of a LAVAE.

    Attributes:
        channels: C, of the images.
        sprite_size: height and width of a sprite.
        max_objects: M, the largest number of objects in the support of p(n).
        latent_size: L, the dimension of z_app.
        gamma: γ on a 64x64 canvas.
        threshold: objects are peaks of h_loc above `threshold` times γ.
        peak_radius: a peak is the highest of the (2 radius + 1)² pixels around it.
        resolve_radius: a peak that is at most this many rows and columns away from another one is
            dropped if that increases the ELBO (see `duplicates`); 0 to keep all.
        support: where q(z_loc) samples: all "pixels", as in the paper, or the "peaks" that f_count
            counts, which never samples one object twice at two pixels.
        location: settings of the location network.
        appearance: settings of the appearance network.
        decoder: settings of the sprite decoder.
        exclusion_radius: with the support "pixels", later draws exclude the pixels at most this
            many rows and columns away from a draw; 0, as in the paper, for that pixel alone.
        min_object_probability: the probability of an object that corresponds to the threshold. If
            h_loc was not trained as log-odds, it only shifts the log-odds of scores.
        prior: p(z_app). The default is that of the paper, since configs of older versions do not
            name a prior.
        composition: how sprites are composed into λ: their "sum", as in the paper, or each "over"
            the sprites of earlier slots, which it hides.
        likelihood: the likelihood of a pixel given λ (see `likelihoods`): "bernoulli" for binary
            images, "gaussian" for grey ones.
        pixel_deviation: the standard deviation of the Gaussian likelihood.
        activations: the type of the activations of convolutional networks. "bfloat16" halves the
            memory traffic of a step on accelerators.
        packed_pixels: how many pixels share the lanes of a TPU in these networks (see
            `networks.Execution`). It changes results only by rounding.
    """

    channels: int
    sprite_size: int
    max_objects: int
    latent_size: int
    gamma: float
    threshold: float
    peak_radius: int
    support: Literal["pixels", "peaks"]
    location: LocationSettings
    appearance: AppearanceSettings
    decoder: DecoderSettings
    resolve_radius: int = 0
    exclusion_radius: int = 0
    min_object_probability: float = 0.5
    prior: PriorSettings = PriorSettings(kind="normal")
    composition: Literal["sum", "over"] = "sum"
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli"
    pixel_deviation: float = 0.1
    activations: Literal["float32", "bfloat16"] = "float32"
    packed_pixels: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        check_choices("model", self)
        for name in ("channels", "sprite_size", "max_objects", "latent_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"model {name}={getattr(self, name)} must be at least 1")
        if not self.pixel_deviation > 0:
            raise ValueError(f"model pixel_deviation={self.pixel_deviation} must be above 0")
        if not 0 < self.min_object_probability < 1:
            raise ValueError(
                f"model min_object_probability={self.min_object_probability} must be a probability "
                "between 0 and 1"
            )

    @property
    def log_odds_at_threshold(self) -> float:
        """The log-odds of an object that correspond to the threshold."""
        return math.log(self.min_object_probability / (1 - self.min_object_probability))

    def gamma_for(self, canvas: Sequence[int]) -> float:
        """Computes γ for a canvas.

        Args:
            canvas: height and width, H and W.

        Returns:
            γ.
        """
        return counting.scale_with_canvas(self.gamma, canvas[0] * canvas[1])

    def threshold_for(self, canvas: Sequence[int]) -> float:
        """Computes the threshold of f_count for a canvas.

        Args:
            canvas: height and width, H and W.

        Returns:
            The threshold in units of h_loc, γ included.
        """
        return self.threshold * self.gamma_for(canvas)


def from_config(cls: type[T], config: Mapping[str, Any], **more: Any) -> T:
    """Creates a dataclass of settings from a part of a config, including nested dataclasses.

    Args:
        cls: the dataclass.
        config: values of its fields.
        **more: further values, which take precedence.

    Returns:
        The settings.

    Raises:
        ValueError: if a field is unknown or missing, or has an invalid value.
    """
    types = typing.get_type_hints(cls)
    values = {**config, **more}
    unknown = sorted(values.keys() - types.keys())
    missing = sorted(
        field.name
        for field in dataclasses.fields(typing.cast(Any, cls))
        if field.default is dataclasses.MISSING and field.name not in values
    )
    if unknown or missing:
        wrong = [*(f"{n} is unknown" for n in unknown), *(f"{n} is missing" for n in missing)]
        raise ValueError(f"{cls.__name__}: {', '.join(wrong)}")
    return cls(**{name: _convert(types[name], value) for name, value in values.items()})


def _convert(type_: Any, value: Any) -> Any:
    if isinstance(type_, type) and dataclasses.is_dataclass(type_):
        return from_config(type_, value)
    return tuple(value) if isinstance(value, list) else value  # JSON has no tuples
