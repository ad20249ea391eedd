"""multi-dSprites: coloured shapes, no two overlapping, on a black canvas."""

import dataclasses

from datasets import scenes
from datasets.multi_dsprites import shapes


@dataclasses.dataclass(kw_only=True)
class MultiDspritesConfig(scenes.SceneConfig):
    patch: int = 19


class Builder(scenes.SceneBuilder):
    """See README.md in this folder for the features and the factors' values."""

    BUILDER_CONFIGS = (
        MultiDspritesConfig(name="default", description="The paper's multi-dSprites."),
    )
    CHANNELS = 3
    ATTRIBUTES = ("shape", "scale", "angle", "color")

    def make_bank(self, dl_manager=None):
        del dl_manager
        return shapes.make_bank(self.builder_config.patch)
