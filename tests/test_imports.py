"""Data flows one way: no module imports, directly or by way of others, one that imports it."""

import ast
import graphlib
import pathlib

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
