"""Of modules as such: data flows one way, so that none imports, directly or by way of others, one
that imports it; and none uses what is deprecated."""

import ast
import graphlib
import pathlib
import warnings

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def imports(path, modules):
    """The modules of the package that a file imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found & modules


def import_graph():
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "lavae_jax").rglob("*.py")
        if path.name != "__init__.py"
    }
    return {name: imports(path, paths.keys()) for name, path in paths.items()}


def test_no_module_imports_itself_by_way_of_others():
    graph = import_graph()
    assert "lavae_jax.objective" in graph["lavae_jax.training.elbo"]
    graphlib.TopologicalSorter(graph).prepare()  # which refuses cycles


def test_packages_do_not_import_each_other():
    """Neither do packages as wholes, where the modules of the top level are one each."""
    packages = {}
    for name, imported in import_graph().items():
        package = ".".join(name.split(".")[:2])
        inner = {".".join(other.split(".")[:2]) for other in imported} - {package}
        packages.setdefault(package, set()).update(inner)
    assert "lavae_jax.training" in packages["lavae_jax.commands"]
    graphlib.TopologicalSorter(packages).prepare()


def our_modules():
    """The names under which tests import modules. Scripts are programs, which they start."""
    for folder in ("lavae_jax", "datasets", "configs"):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__")
    for path in (ROOT / "tests").glob("*.py"):
        yield path.stem
    for path in (ROOT / "launch" / "benchmarks").glob("*.py"):
        yield f"benchmarks.{path.stem}"
    yield from ("_checkout", "_shared")


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning])
def test_deprecation_warnings_are_errors_in_our_own_modules_and_in_no_others(category):
    for module in our_modules():
        with pytest.raises(category):
            warnings.warn_explicit("old", category, "file.py", 1, module)
    for module in ("jax.numpy", "flax", "tensorflow_datasets.core", "datasets_of_others", "tests_"):
        warnings.warn_explicit("old", category, "file.py", 1, module)
