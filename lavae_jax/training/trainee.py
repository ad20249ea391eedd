"""The module that is trained: LAVAE and the auxiliary VAE of its warm-up."""

import flax.linen as nn
from ml_collections import ConfigDict

from lavae_jax.model import LAVAE
from lavae_jax.settings import LavaeSettings, from_config
from lavae_jax.vae import AuxiliarySettings


class Trainee(nn.Module):
    """LAVAE and the auxiliary VAE.

    Attributes:
        settings: LAVAE's settings.
        auxiliary_settings: the auxiliary VAE's settings.
        train: the parts that are being trained, such as "lavae.location" or "auxiliary".
        axis_name: the device axis over which batch statistics are taken; None for one device.
    """

    settings: LavaeSettings
    auxiliary_settings: AuxiliarySettings
    train: tuple[str, ...] = ()
    axis_name: str | None = None

    def setup(self):
        """Creates both models."""
        inside = tuple(p.removeprefix("lavae.") for p in self.train if p.startswith("lavae."))
        self.lavae = LAVAE(self.settings, inside, self.axis_name)
        self.auxiliary = self.auxiliary_settings.build("auxiliary" in self.train, self.axis_name)

    def __call__(self) -> None:
        self.lavae()
        self.auxiliary()


def settings(config: ConfigDict) -> tuple[LavaeSettings, AuxiliarySettings]:
    """Reads the settings of LAVAE and of the auxiliary VAE.

    Args:
        config: the run's config.

    Returns:
        The settings of both.
    """
    lavae = from_config(LavaeSettings, config.model)
    return lavae, from_config(
        AuxiliarySettings,
        config.auxiliary,
        channels=lavae.channels,
        activations=lavae.activations,
        packed_pixels=lavae.packed_pixels,
    )
