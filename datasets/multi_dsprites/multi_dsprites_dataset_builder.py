"""multi-dSprites: coloured shapes on a black canvas."""

import dataclasses

from datasets import scenes
from datasets.multi_dsprites import shapes


@dataclasses.dataclass(kw_only=True)
class MultiDspritesConfig(scenes.SceneConfig):
    """A multi-dSprites data set; see `scenes.SceneConfig` for the other fields.

    Attributes:
        factors: which shapes the data set has, a key of `shapes.BANKS`.
    """

    patch: int = 19
    factors: str = "grid"


class Builder(scenes.SceneBuilder):
    """See README.md in this folder for the features and the factors' values."""

    BUILDER_CONFIGS = (
        MultiDspritesConfig(name="default", description="The paper's multi-dSprites."),
        MultiDspritesConfig(
            name="between",
            description="Shapes that multi-dSprites does not have, centred between pixels.",
            factors="between",
            crowd=5,
            num_train=1_000,
        ),
        MultiDspritesConfig(
            name="anywhere", description="Shapes anywhere; later ones occlude others.", apart=0
        ),
    )
    CHANNELS = 3
    ATTRIBUTES = ("shape", "scale", "angle", "color")
    OCCLUDE = True

    def make_bank(self, dl_manager=None):
        """Makes the sprites.

        Args:
            dl_manager: ignored, since the shapes are drawn.

        Returns:
            The sprites and their attributes.
        """
        del dl_manager
        return shapes.BANKS[self.builder_config.factors](self.builder_config.patch)
