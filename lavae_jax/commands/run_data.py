"""The data that a run's config names: scenes, or custom images."""

from ml_collections import ConfigDict

from lavae_jax import crops, input_pipeline
from lavae_jax.commands import scene_data
from lavae_jax.training import loop


def is_custom(config: ConfigDict) -> bool:
    """Checks whether a run is trained on custom images.

    Args:
        config: the config of a run.

    Returns:
        True for custom images, False for scenes.
    """
    return config.dataset.name == "images"


def settle(config: ConfigDict) -> None:
    """Estimates settings from custom images, and writes them into the config.

    Args:
        config: the config of a run, changed in place; that of scenes is left unchanged.
    """
    if is_custom(config):
        crops.settle(config)


def canvas(config: ConfigDict) -> tuple[int, int]:
    """Returns the size of the images that a run is trained on.

    Args:
        config: the config of a run.

    Returns:
        Height and width.
    """
    if is_custom(config):
        return config.dataset.canvas, config.dataset.canvas
    datasets = scene_data.load()
    side = datasets.make_builder(**datasets.options(config.dataset)).builder_config.canvas
    return side, side


def open_training_data(config: ConfigDict) -> loop.Data:
    """Opens training and held-out data. Scene data sets are built if they do not exist.

    Args:
        config: the config of a run.

    Returns:
        The data; the last examples are held out.

    Raises:
        TrainingError: the settings of the model or of held-out data do not fit the data set.
    """
    return _open_custom(config) if is_custom(config) else _open_scenes(config)


def _open_custom(config):
    source = crops.open_crops(config)
    for line in crops.check(source, config.model.sprite_size, config.model.max_objects):
        print(line, flush=True)
    return _split(source, source, len(source), crops.held_out(config.dataset.held_out, len(source)))


def _open_scenes(config):
    datasets = scene_data.load()
    builder = datasets.make_builder(**datasets.options(config.dataset))
    if builder.builder_config.grey:
        raise loop.TrainingError(
            f"scenes of {config.dataset.name} are grey and need a threshold: build them with "
            "launch/build_data.py, and train on them as custom images with lavae train "
            f"--config=images:cpu --config.dataset.path=tfds:{config.dataset.name}"
        )
    size, held_out = builder.builder_config.num_train, config.dataset.held_out
    if not 0 < held_out < size:
        raise loop.TrainingError(
            f"config.dataset.held_out={held_out} must be at least 1 and less than the {size} "
            "training scenes"
        )
    if config.model.channels != builder.CHANNELS:
        raise loop.TrainingError(
            f"config.model.channels={config.model.channels}, but scenes of {config.dataset.name} "
            f"have {builder.CHANNELS}"
        )
    datasets.prepare(builder)
    images = input_pipeline.open_split(builder, "train")
    with_counts = input_pipeline.open_split(builder, "train", ("image", "count"))
    return _split(images, with_counts, size, held_out)


def _split(training, held_out, size: int, num_held_out: int) -> loop.Data:
    """Holds out the last examples."""
    first = size - num_held_out
    return loop.Data(
        input_pipeline.Part(training, range(first)),
        input_pipeline.Part(held_out, range(first, size)),
    )
