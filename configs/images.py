"""LAVAE on custom images.

    python launch/show_data.py --dataset=images --path=my_images/     # what the model will see
    python launch/train.py --config=configs/images.py:cpu --config.dataset.path=my_images/ \\
        --config.model.sprite_size=17
    python launch/infer.py --checkpoint=runs/images-cpu --images=new_images/ --output=objects.csv

The only required setting is `sprite_size`, the approximate size of the largest object in pixels.
Other settings follow from it.
"""

from lavae_jax.recipes.images import get_config as get_config
