"""The model card of an exported model: README.md in its folder.

A card says what a model was trained on, by which command, how it was evaluated, and what it is and
is not good for. It is made from the other files of the folder.
"""

import datetime
import json
import pathlib

from ml_collections import ConfigDict

from lavae_jax import model_files

CARD = "README.md"
# Columns of the table of results: title, name in the file of results, format.
SCORES = (
    ("-log p(x) <= (nats, lower is better)", "neg_bound", ".2f"),
    ("standard error (nats)", "standard_error", ".2f"),
    ("count accuracy (higher is better)", "count_accuracy", ".2%"),
    ("95th-percentile centre error (pixels, lower is better)", "centre_distance_95", ".2f"),
    ("foreground ARI (higher is better)", "foreground_ari", ".4f"),
)
TEMPLATE = """# {name}

{kind}, trained on {data} by the recipe `{recipe}`. `lavae_jax.load` takes the path of this folder
or, if the model comes with the package, its name.

## Training

- Command: `{command}`
- Seed {seed}, {step:,} steps, {time} (h:mm:ss) on {devices}
- Revision {revision}; `provenance.json` has the packages' versions and the checksum of the weights

## Results

{results}

## Intended use

{good_for}

## Limitations

{not_good_for}
"""
GOOD_FOR_LAVAE = (
    "Counting, locating and editing objects like those of the training set, at most {size} pixels "
    "wide and high, on a plain background and a canvas of any size."
)
GOOD_FOR_MIXTURE = (
    "Sampling scenes with objects of the training set, and computing their likelihoods."
)
GOOD_FOR_BASELINE = "Comparing the likelihood of LAVAE with that of a VAE without objects."
NO_OVERLAP = "Objects that touch or overlap: the location network was trained on separate objects."
NO_OTHER_STROKES = (
    "Objects drawn in another way than those of the training set, such as with thicker strokes "
    "or between pixels: more of them are missed or split than by a model of the recipe `cpu`."
)
NO_GREY = "Grey levels: each pixel is foreground or background."
GOOD_FOR_GREY = (
    "Counting, locating and outlining objects like those of the training images, including objects "
    "that touch. Each image is zoomed according to the size of its objects."
)
NO_DEBRIS = "Telling objects from debris of the same size and brightness."
NO_OTHER_OBJECTS = (
    "Objects unlike those of the training set, or of another size: many are counted and located, "
    "but their reconstructions and likelihoods are poor."
)
NO_OBJECTS = "Counting, locating or editing objects: no latent variable stands for an object."


def write(folder: pathlib.Path) -> None:
    """Writes the card of an exported model, and replaces an earlier one.

    Args:
        folder: the model's folder.
    """
    (folder / CARD).write_text(text(folder))


def text(folder: pathlib.Path) -> str:
    """Makes the card of an exported model.

    Args:
        folder: the model's folder.

    Returns:
        The card in Markdown.
    """
    config = model_files.read_config(folder)
    made = json.loads((folder / model_files.PROVENANCE).read_text())
    good_for, not_good_for = _uses(config)
    return TEMPLATE.format(
        name=folder.resolve().name,
        kind="A LAVAE" if config.kind == "lavae" else "The baseline, a β-VAE",
        data=_data(config.dataset.name, config.dataset.get("overrides")),
        recipe=config.recipe,
        seed=config.seed,
        command=made["command"],
        step=made["step"],
        time=datetime.timedelta(seconds=round(made["seconds"])),
        devices=", ".join(made["devices"]),
        revision=made["git_revision"],
        results=_results(folder, config),
        good_for="\n".join(f"- {line}" for line in good_for),
        not_good_for="\n".join(f"- {line}" for line in not_good_for),
    )


def _data(name: str, overrides: str | None) -> str:
    if name == "images":
        return "custom images"
    return f"`{name}`" + (f" with `{overrides}`" if overrides else "")


def _uses(config: ConfigDict) -> tuple[list[str], list[str]]:
    """Intended uses and limitations of a model."""
    if config.kind != "lavae":
        return [GOOD_FOR_BASELINE], [NO_OBJECTS, NO_GREY]
    if config.dataset.get("levels") == "grey":
        return [GOOD_FOR_GREY], [NO_DEBRIS, NO_OTHER_OBJECTS]
    good_for, not_good_for = [GOOD_FOR_LAVAE.format(size=config.model.sprite_size)], []
    if config.model.get("prior", {}).get("kind") == "mixture":
        good_for.append(GOOD_FOR_MIXTURE)
    if "sleep" not in config.curriculum.phases:
        not_good_for.append(NO_OVERLAP)
    elif config.dataset.name != "images":
        not_good_for.append(NO_OTHER_STROKES)
    return good_for, [*not_good_for, NO_GREY, NO_OTHER_OBJECTS]


def _results(folder: pathlib.Path, config: ConfigDict) -> str:
    """A row for each split in the files that `lavae evaluate` wrote for this model."""
    lines = [
        ["data set", "split", "scenes", "importance samples", *(title for title, *_ in SCORES)]
    ]
    lines.append(["---"] * len(lines[0]))
    for path in sorted(folder.glob("results*.json")):
        result = json.loads(path.read_text())
        if result["seed"] != config.seed:  # of another training
            continue
        data = _data(result["dataset"], result["overrides"])
        for split, scores in result["splits"].items():
            cells = [_cell(scores.get(name), form) for _, name, form in SCORES]
            lines.append([data, split, f"{scores['images']:,}", str(result["num_samples"]), *cells])
    if len(lines) == 2:
        return (
            f"None yet. `lavae evaluate --checkpoint={folder.name} "
            f"--output={folder.name}/results.json` evaluates the model, and `lavae export "
            f"--card={folder.name}` then rewrites this card; run both in the folder above this one."
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: float | None, form: str) -> str:
    """A number as text; empty where it was not measured."""
    return "" if value is None else format(value, form)
