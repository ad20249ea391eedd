"""The networks of Appendix B. They compute features, not probabilities.

Every convolution is followed by leaky ReLU and batch normalisation unless stated otherwise. An
`Execution` tells each network whether it is being trained, over which devices batch statistics are
taken, and how its layers are computed. If a mask is given, batch statistics are taken over the
examples that it marks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from lavae_jax.settings import AppearanceSettings, DecoderSettings, LocationSettings

BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5


# --- parts -------------------------------------------------------------------


class Execution(NamedTuple):
    """How the layers of a network are computed.

    Attributes:
        train: whether the network is being trained: batch normalisation uses batch statistics.
        axis_name: the device axis over which batch statistics are taken; None for one device.
        dtype: the type of the activations between layers and of the operands of convolutions; None
            for the common type of the inputs and parameters.
        packed: how many neighbouring pixels of a row share one channel vector, 1 or 2. A TPU pads
            channels to 128 lanes, so 48 channels waste almost two thirds of its memory bandwidth,
            and two pixels of 48 channels only a quarter. Packing changes neither the function that
            a network computes nor its parameters.
    """

    train: bool = False
    axis_name: str | None = None
    dtype: str | None = None
    packed: int = 1

    @classmethod
    def of(cls, train: bool, axis_name: str | None, activations: str, packed: int) -> "Execution":
        """Creates an `Execution` from the values of `LavaeSettings`.

        Args:
            train: whether the network is being trained.
            axis_name: the device axis over which batch statistics are taken; None for one device.
            activations: the type of the activations, "float32" or "bfloat16".
            packed: how many pixels of a row share one channel vector.

        Returns:
            The execution.
        """
        return cls(train, axis_name, None if activations == "float32" else activations, packed)

    def cast(self, *arrays: jax.Array) -> list[jax.Array]:
        """Casts arrays to the type in which a layer is computed.

        Args:
            *arrays: inputs and parameters of the layer.

        Returns:
            The arrays, all of the same type.
        """
        return promote_dtype(*arrays, dtype=self.dtype)

    def plain(self) -> "Execution":
        """Turns packing off.

        Returns:
            A copy with `packed` = 1.
        """
        return self._replace(packed=1)

    def exact(self) -> "Execution":
        """Turns reduced precision off.

        Returns:
            A copy that computes in the common type of the inputs and parameters.
        """
        return self._replace(dtype=None)

    def fitting(self, x: jax.Array, stride: int = 1, lost: int = 0) -> "Execution":
        """Turns packing off if a layer cannot be computed on packed images.

        Args:
            x: the layer's input, [N, H, W, C], not packed.
            stride: the layer's stride.
            lost: by how many columns the layer's output is narrower than its input.

        Returns:
            This execution, or a copy without packing.
        """
        can_pack = stride == 1 and x.shape[2] % self.packed == lost % self.packed == 0
        return self if can_pack else self.plain()

    def pack(self, x: jax.Array) -> jax.Array:
        """Packs neighbouring pixels of each row into one channel vector.

        Args:
            x: [N, H, W, C].

        Returns:
            [N, H, W / packed, packed C].
        """
        n, height, width, channels = x.shape
        return x.reshape(n, height, width // self.packed, self.packed * channels)

    def unpack(self, x: jax.Array) -> jax.Array:
        """Inverts `pack`.

        Args:
            x: [N, H, W / packed, packed C].

        Returns:
            [N, H, W, C].
        """
        n, height, width, channels = x.shape
        return x.reshape(n, height, width * self.packed, channels // self.packed)


class BatchNorm(nn.Module):
    """Batch normalisation over the marked examples of all devices.

    Flax's own averages the means of the devices, which is wrong if they hold different numbers of
    objects. If no example is marked on any device, the running statistics are used and remain
    unchanged. Statistics are float32.

    Attributes:
        execution: whether the layer is being trained, and how its input is packed.
    """

    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x, mask=None):
        """Normalises activations.

        Args:
            x: activations, [N, ..., packed C].
            mask: the examples that the batch statistics include, [N] bool; None for all.

        Returns:
            Normalised activations of the shape and type of `x`.
        """
        packed = self.execution.packed
        shape, ones = (x.shape[-1] // packed,), nn.initializers.ones
        scale = self.param("scale", ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        variance = self.variable("batch_stats", "var", jnp.ones, shape)
        dtype, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if self.execution.train and not self.is_initializing():
            batch_mean, batch_variance, seen = self._statistics(x, mask)
            use_mean = jnp.where(seen, batch_mean, mean.value)
            use_variance = jnp.where(seen, batch_variance, variance.value)
            for running, now in ((mean, use_mean), (variance, use_variance)):
                kept = BATCH_NORM_MOMENTUM * running.value
                running.value = kept + (1 - BATCH_NORM_MOMENTUM) * now
        else:
            use_mean, use_variance = mean.value, variance.value
        factor = scale * jax.lax.rsqrt(use_variance + BATCH_NORM_EPSILON)
        use_mean, factor, bias = (_tile(a, packed) for a in (use_mean, factor, bias))
        return ((x - use_mean) * factor + bias).astype(dtype)

    def _statistics(self, x, mask):
        if mask is None:
            mask = jnp.ones(len(x), bool)
        mask = mask.reshape(-1, *[1] * (x.ndim - 1))
        axes, packed = tuple(range(x.ndim - 1)), self.execution.packed
        masked = jnp.where(mask, x, 0)
        size = mask.sum(dtype=x.dtype) * (x.size // (len(x) * x.shape[-1]) * packed)
        first, second = (_untile(a.sum(axes), packed) for a in (masked, jnp.square(masked)))
        sums = size, first, second
        if self.execution.axis_name is not None:
            sums = jax.lax.psum(sums, self.execution.axis_name)
        size, first, second = sums
        mean = first / jnp.maximum(size, 1)
        variance = jnp.maximum(second / jnp.maximum(size, 1) - jnp.square(mean), 0)
        return mean, variance, size > 0


def _tile(values, packed):
    """Repeats values [C] for each packed pixel: [packed C]."""
    return values if packed == 1 else jnp.tile(values, packed)


def _untile(sums, packed):
    """Adds up sums [packed C] over the packed pixels: [C]."""
    return sums if packed == 1 else sums.reshape(packed, -1).sum(0)


def _lost(kernel: int, padding: str) -> int:
    """By how many columns the output of a convolution is narrower."""
    return kernel - 1 if padding == "VALID" else 0


class Conv(nn.Module):
    """A convolution with the parameters of Flax's own.

    Attributes:
        execution: how the layer is computed.
        features: the number of output channels, F.
        kernel: the side of the kernel, in pixels.
        stride: the stride in both directions.
        padding: "SAME" or "VALID".
        use_bias: whether a bias is added.
        is_packed: whether input and output are packed; if not, the layer packs and unpacks them.
    """

    execution: Execution
    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"
    use_bias: bool = True
    is_packed: bool = False

    @nn.compact
    def __call__(self, x):
        """Convolves activations.

        Args:
            x: [N, H, W, C], or [N, H, W / packed, packed C] if `is_packed`.

        Returns:
            [N, H', W', F], or [N, H', W' / packed, packed F] if `is_packed`.
        """
        if self.is_packed:
            return self._convolve(self.execution, x)
        execution = self.execution.fitting(x, self.stride, _lost(self.kernel, self.padding))
        return execution.unpack(self._convolve(execution, execution.pack(x)))

    def _convolve(self, execution, x):
        channels = x.shape[-1] // execution.packed
        shape = (self.kernel, self.kernel, channels, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        if execution.packed > 1:
            kernel = pack_kernel(kernel, execution.packed, self.padding)
        x, kernel = execution.cast(x, kernel)
        x = jax.lax.conv_general_dilated(
            x,
            kernel,
            (self.stride,) * 2,
            self.padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        if not self.use_bias:
            return x
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return x + _tile(bias, execution.packed).astype(x.dtype)


def pack_kernel(kernel: jax.Array, packed: int, padding: str) -> jax.Array:
    """Transforms the kernel of a convolution into one that acts on packed activations.

    Packed activations are [N, H, W / packed, packed C]. Most of the new kernel is 0. For two
    pixels, the arithmetic doubles, but the memory traffic, which bounds a step on a TPU, is halved.

    Args:
        kernel: [k, k, C, F].
        packed: how many pixels of a row share one channel vector.
        padding: "SAME" or "VALID".

    Returns:
        [k, t, packed C, packed F], for a window of t channel vectors.
    """
    size = kernel.shape[1]
    # The leftmost pixel that an output sees, relative to its own.
    first = -((size - 1) // 2) if padding == "SAME" else 0
    last_group = (first + size - 1 + packed - 1) // packed
    groups = np.arange(-last_group if padding == "SAME" else 0, last_group + 1)
    pixel = np.arange(packed)
    offset = packed * groups[:, None, None] + pixel[:, None] - pixel - first  # [t, in, out]
    choice = (offset[..., None] == np.arange(size)).astype(np.float32)
    kernel = jnp.einsum("hwio,tabw->htaibo", kernel, choice, precision="highest")
    k, t, _, channels, _, features = kernel.shape
    return kernel.reshape(k, t, packed * channels, packed * features)


class ConvLayer(nn.Module):
    """A convolution, leaky ReLU and batch normalisation.

    Attributes:
        execution, features, kernel, stride, padding, is_packed: as in `Conv`.
    """

    execution: Execution
    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"
    is_packed: bool = False

    @nn.compact
    def __call__(self, x, mask=None):
        """Applies the layer.

        Args:
            x: activations, as in `Conv`.
            mask: the examples that batch statistics include, [N] bool; None for all.

        Returns:
            Activations, as in `Conv`.
        """
        execution = self.execution
        if not self.is_packed:
            execution = execution.fitting(x, self.stride, _lost(self.kernel, self.padding))
            x = execution.pack(x)
        conv = Conv(
            execution, self.features, self.kernel, self.stride, self.padding, is_packed=True
        )
        x = BatchNorm(execution)(nn.leaky_relu(conv(x)), mask)
        return x if self.is_packed else execution.unpack(x)


class ResidualBlock(nn.Module):
    """Adds two layers of x to x, which is projected if the number of channels changes.

    Attributes:
        execution: how the layers are computed.
        features: the number of output channels, F.
        padding: "SAME", or "VALID", for which the skip connection is cropped as the layers are.
        linear: whether leaky ReLU and batch normalisation are left out.
    """

    execution: Execution
    features: int
    padding: str = "SAME"
    linear: bool = False

    @nn.compact
    def __call__(self, x, mask=None, inside=None):
        """Applies the block.

        Args:
            x: activations, [N, H, W, C].
            mask: the examples that batch statistics include, [N] bool; None for all.
            inside: [N, H, W, 1] bool; activations elsewhere are set to 0, as beyond the border.

        Returns:
            [N, H, W, F], or [N, H - 4, W - 4, F] for "VALID" padding.
        """
        execution = self.execution.fitting(x) if inside is None else self.execution.plain()
        x = execution.pack(*execution.cast(x))
        y = x
        for _ in range(2):
            if self.linear:
                y = Conv(execution, self.features, padding=self.padding, is_packed=True)(y)
            else:
                layer = ConvLayer(execution, self.features, padding=self.padding, is_packed=True)
                y = layer(y, mask)
            y = _keep(y, inside)
        if self.padding == "VALID":
            columns = 2 // execution.packed
            x = x[:, 2:-2, columns:-columns]
        if x.shape[-1] != y.shape[-1]:
            x = Conv(execution, self.features, 1, use_bias=False, is_packed=True)(x)
        return execution.unpack(x + y)


def space_to_depth(x: jax.Array, factor: int) -> jax.Array:
    """Moves the pixels of each cell of f x f pixels into channels.

    Args:
        x: [B, H, W, C].
        factor: f, which divides H and W.

    Returns:
        [B, H / f, W / f, f² C].
    """
    b, h, w, c = x.shape
    x = x.reshape(b, h // factor, factor, w // factor, factor, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h // factor, w // factor, factor**2 * c)


def depth_to_space(x: jax.Array, factor: int) -> jax.Array:
    """Inverts `space_to_depth`.

    Args:
        x: [B, H, W, f² C].
        factor: f.

    Returns:
        [B, f H, f W, C].
    """
    b, h, w, c = x.shape
    x = x.reshape(b, h, w, factor, factor, c // factor**2)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h * factor, w * factor, c // factor**2)


def blur(maps: jax.Array, factor: int) -> jax.Array:
    """Averages each pixel with those around it.

    The weights fall linearly to 0 at a distance of `factor`, in rows and in columns (a tent). Away
    from the border, each of the `factor` x `factor` positions in a cell gets the same total weight,
    so the blur prefers none of them.

    Args:
        maps: [B, H, W].
        factor: the distance at which the weights are 0, in pixels.

    Returns:
        [B, H, W].
    """
    rows, columns = (_tent(side, factor) for side in maps.shape[1:])
    return jnp.einsum("hi,bij,wj->bhw", rows, maps, columns)


def _tent(length: int, reach: int) -> jax.Array:
    position = jnp.arange(length)
    weights = jnp.maximum(reach - jnp.abs(position[:, None] - position), 0)
    return weights / weights.sum(1, keepdims=True)


def filtered(maps: jax.Array, weights: np.ndarray) -> jax.Array:
    """Convolves maps with a separable symmetric filter.

    Computed in full precision on every platform, since callers compare pixels that are almost
    equal.

    Args:
        maps: [B, H, W]; 0 is assumed outside.
        weights: [k], k odd, for rows as well as columns.

    Returns:
        [B, H, W].
    """
    rows, columns = (_band(side, weights) for side in maps.shape[1:])
    return jnp.einsum("hi,bij,wj->bhw", rows, maps, columns, precision="highest")


def _band(length: int, weights: np.ndarray) -> np.ndarray:
    position = np.arange(length)
    offset = position - position[:, None] + len(weights) // 2
    inside = (offset >= 0) & (offset < len(weights))
    band = np.where(inside, weights[np.clip(offset, 0, len(weights) - 1)], 0)
    return band.astype(np.float32)


def pad_to_multiple(x: jax.Array, factor: int) -> jax.Array:
    """Adds black rows below and columns to the right.

    Args:
        x: images, [B, H, W, C].
        factor: the padded height and width are the next multiples of it.

    Returns:
        The padded images.
    """
    height, width = x.shape[1:3]
    return jnp.pad(x, ((0, 0), (0, -height % factor), (0, -width % factor), (0, 0)))


# --- the three networks of LAVAE ---------------------------------------------


class LocationNet(nn.Module):
    """The location network: location logits before γ.

    Images may be padded with black, below and to the right, to a common size. If their own sizes
    are given, padding changes no logit of the image: activations beyond its border are kept at 0,
    which is what a convolution pads with.

    Attributes:
        settings: the architecture.
        execution: how the layers are computed.
    """

    settings: LocationSettings
    execution: Execution

    @nn.compact
    def __call__(self, x, size=None):
        """Computes the logits of images.

        Args:
            x: images, [B, H, W, C].
            size: rows and columns of each image before padding, [B, 2]; None if none is padded.

        Returns:
            Logits, [B, H, W]; arbitrary where an image is padded.
        """
        settings, factor = self.settings, self.settings.space_to_depth
        height, width = x.shape[1:3]
        x = space_to_depth(pad_to_multiple(x, factor), factor)
        inside = None if size is None else is_inside(-(-size // factor), x.shape[1:3])[..., None]
        for _ in range(settings.blocks):
            x = ResidualBlock(self.execution, settings.width)(x, inside=inside)
        for _ in range(2):
            x = _keep(ConvLayer(self.execution, settings.head_width)(x), inside)
        # In float32: γ would magnify the rounding error.
        x = Conv(self.execution.exact(), factor**2)(x)
        x = depth_to_space(x, factor)[:, :height, :width, 0]
        if not settings.blur_logits:
            return x
        if size is None:
            return blur(x, factor)
        inside = is_inside(size, (height, width)).astype(x.dtype)
        return blur(x * inside, factor) / jnp.maximum(blur(inside, factor), 1e-6)


def scale_logits(params: Mapping[str, Any], scale: float, shift: float) -> dict[str, Any]:
    """Changes the parameters of a `LocationNet` so that its logits become scale · logits + shift.

    Args:
        params: the parameters of a `LocationNet`.
        scale: the factor.
        shift: the constant.

    Returns:
        The new parameters.
    """
    last = {"kernel": scale * params["Conv_0"]["kernel"]}
    last["bias"] = scale * params["Conv_0"]["bias"] + shift
    return {**params, "Conv_0": last}


def is_inside(size: jax.Array, canvas: Sequence[int]) -> jax.Array:
    """Marks the pixels of a canvas that images cover.

    Args:
        size: rows and columns of each image, [B, 2].
        canvas: height and width, H and W.

    Returns:
        [B, H, W] bool.
    """
    rows, columns = (jnp.arange(side) for side in canvas)
    return (rows[:, None] < size[:, 0, None, None]) & (columns < size[:, 1, None, None])


def _keep(x, inside):
    return x if inside is None else jnp.where(inside, x, 0)


class AppearanceNet(nn.Module):
    """The appearance network: h_app, the mean and raw log variance of z_app at each pixel.

    No layer is padded, so a window of 2 radius + 1 pixels gives the vector that the map of the
    whole image has at its centre. This also holds at the border, since the canvas beyond it is
    black.

    Attributes:
        settings: the architecture.
        outputs: the number of output channels, 2L.
        execution: how the layers are computed.
    """

    settings: AppearanceSettings
    outputs: int
    execution: Execution

    @property
    def radius(self) -> int:
        """The radius of the receptive field, in pixels."""
        return self.settings.radius

    @nn.compact
    def __call__(self, x, mask=None):
        """Computes h_app of images or windows.

        Args:
            x: images with a black margin of `radius`, [B, H + 2 radius, W + 2 radius, C].
            mask: the examples that batch statistics include, [B] bool; None for all.

        Returns:
            h_app, [B, H, W, 2L].
        """
        return self._dense(x) if self.settings.network == "dense" else self._residual(x, mask)

    def _dense(self, x):
        size = self.settings.window
        first, *rest = self.settings.hidden
        kernel = self.param(
            "kernel", nn.initializers.lecun_normal(), (size, size, x.shape[-1], first)
        )
        bias = self.param("bias", nn.initializers.zeros, (first,))
        if x.shape[1:3] == (size, size):  # one position: a matrix product
            x = x.reshape(len(x), -1) @ kernel.reshape(-1, first)
            x = x[:, None, None]
        else:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        x = nn.leaky_relu(x + bias)
        for features in rest:
            x = nn.leaky_relu(nn.Dense(features)(x))
        return nn.Dense(self.outputs)(x)

    def _residual(self, x, mask):
        for _ in range(self.settings.blocks):
            x = ResidualBlock(self.execution, self.settings.width, "VALID")(x, mask)
        return Conv(self.execution.exact(), self.outputs, padding="VALID")(x)


class SpriteDecoder(nn.Module):
    """f_sprite, which decodes appearances into sprites.

    Attributes:
        settings: the architecture.
        size: height and width of a sprite, h = w.
        channels: the number of channels of a sprite, C.
        execution: how the layers are computed.
    """

    settings: DecoderSettings
    size: int
    channels: int
    execution: Execution

    @nn.compact
    def __call__(self, z, mask=None):
        """Decodes appearances.

        Args:
            z: appearances z_app, [P, L].
            mask: the entries that batch statistics include, [P] bool; None for all.

        Returns:
            Sprites in (0, 1), [P, h, w, C].
        """
        dense = self.settings.network == "dense"
        return nn.sigmoid(self._dense(z) if dense else self._residual(z, mask))

    def _dense(self, z):
        x = z
        for features in self.settings.hidden:
            x = nn.leaky_relu(nn.Dense(features)(x))
        x = nn.Dense(self.size**2 * self.channels)(x)
        return x.reshape(-1, self.size, self.size, self.channels)

    def _residual(self, z, mask):
        settings = self.settings
        x = nn.leaky_relu(nn.Dense(settings.seed_size**2 * settings.seed_channels)(z))
        x = x.reshape(-1, settings.seed_size, settings.seed_size, settings.seed_channels)
        x = BatchNorm(self.execution)(x, mask)
        x = ConvLayer(self.execution, settings.seed_channels)(x, mask)
        shape = (len(x), self.size, self.size)
        x = jax.image.resize(x, (*shape, settings.seed_channels), "bilinear")
        expanded = jnp.broadcast_to(z[:, None, None], (*shape, z.shape[-1]))
        x = jnp.concatenate([x, expanded], axis=-1)
        for block in range(settings.blocks):
            last = block == settings.blocks - 1
            x = ResidualBlock(self.execution, settings.width, linear=last)(x, mask)
        return Conv(self.execution.exact(), self.channels)(x)
