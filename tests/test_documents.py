"""Documents keep what they promise: their links lead somewhere, and their code runs."""

import json
import re

import pytest
from conftest import ROOT

README = ROOT / "README.md"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("datasets/*/README.md")]
)
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
LINK = re.compile(r"""(?:\]\(|src=")([^)\s"]+)""")


def anchors(path):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path):
    for target in LINK.findall(path.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_figure_is_shown_in_a_document():
    targets = [target for path in DOCUMENTS for target in LINK.findall(path.read_text())]
    shown = {target.rpartition("/")[-1] for target in targets}
    assert {path.name for path in (ROOT / "figures").iterdir()} <= shown


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])")


def test_measured_numbers_in_readme_are_recorded():
    """In docs/, with the run or the command of each. Table 1 has a test of its own."""
    sources = [ROOT / "pyproject.toml", *ROOT.glob("docs/*.md")]
    recorded = {float(n) for path in sources for n in DECIMAL.findall(path.read_text())}
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", README.read_text(), flags=re.DOTALL)
    table_1 = ("| multi-", "| held-out digits")
    lines = [line for line in text.splitlines() if not line.startswith(table_1)]
    numbers = [float(n) for n in DECIMAL.findall("\n".join(lines))]
    assert len(numbers) > 20
    assert [number for number in numbers if number not in recorded] == []


def test_the_notebook_runs_and_keeps_its_outputs():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(root in json.dumps(cells) for root in ("/tmp", "/home/", "/work/"))
    assert NOTEBOOK.stat().st_size < 200_000
    where = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()  # raises errors
