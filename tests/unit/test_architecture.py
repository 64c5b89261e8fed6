"""The directions in which packages may import each other, and what only some of them may import."""

import ast
from pathlib import Path

import pytest

import ratewise

SOURCE = Path(ratewise.__file__).parent
BASE = {"exceptions", "_validate", "_files"}
# what each package may import besides itself and BASE; the order is that of a fit
ALLOWED = {
    "constraints": set(),
    "accounting": set(),
    "mechanisms": set(),
    "data": {"constraints"},
    "preprocessing": {"data", "mechanisms"},
    "metrics": {"constraints", "data"},
}
ALLOWED["training"] = {"accounting", "constraints", "data", "mechanisms", "metrics", "preprocessing"}
ALLOWED["models"] = {"constraints", "data", "mechanisms", "preprocessing", "training"}
ALLOWED["distributed"] = ALLOWED["training"] | {"training", "models"}
ALLOWED["estimators"] = ALLOWED["distributed"] | {"distributed"}
ALLOWED["datasets"] = {"data"}
ALLOWED["report"] = {"accounting", "constraints", "data", "estimators", "metrics", "models", "training"}
ALLOWED["audit"] = ALLOWED["distributed"]
ALLOWED["torch"] = ALLOWED["estimators"] | {"audit", "estimators"}
ALLOWED["runs"] = ALLOWED["estimators"] | {"estimators"}
ALLOWED["cli"] = ALLOWED["runs"] | {"audit", "datasets", "runs"}
ALLOWED["__main__"] = {"cli"}
ALLOWED["__init__"] = {"cli", *(ALLOWED["runs"])}
for base in ("exceptions", "_validate", "_files"):
    ALLOWED[base] = set()
# a function may import this when it is called: reports, figures and networks are optional
ON_CALL = {("estimators", "report"), ("cli", "report"), ("cli", "torch")}
# what these modules compute with is released or public: they see no rows, so they import nothing that reads any
ROWLESS = {
    "training/loop.py": {"mechanisms"},
    "training/dual.py": {"constraints"},
    "training/certificate.py": {"accounting", "constraints", "metrics"},
    "training/config.py": {"accounting", "preprocessing"},
    "training/plan.py": {"accounting", "mechanisms"},
}
# number of modules, not counting `__init__.py`; these numbers may fall
MOST_MODULES = 87
MOST_CORE_MODULES = 51
LONGEST_MODULE = 910  # lines
OUTSIDE_THE_CORE = {"torch", "report", "cli", "runs", "audit", "datasets"}
MOST_TOP_LEVEL = 8


def imported(path, *, with_calls=True):
    """Yield (module, whether inside a function) for every import that runs; those for type checkers do not."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if id(node) in skipped or (not with_calls and id(node) in inside):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in inside
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inside


def package_of(path):
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def files():
    return list(SOURCE.rglob("*.py"))


def upward(package, path):
    """Return what a file imports of packages that its own may not import."""
    found = []
    for module, on_call in imported(path):
        names = module.split(".")
        if names[0] != "ratewise" or len(names) < 2:
            continue
        other = names[1]
        if other == package or other in BASE | ALLOWED[package] or (on_call and (package, other) in ON_CALL):
            continue
        found.append(f"{path.relative_to(SOURCE)} imports {module}")
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_is_below_them(package):
    paths = [path for path in files() if package_of(path) == package]
    assert paths
    assert [line for path in paths for line in upward(package, path)] == []


def test_the_check_sees_an_upward_import(tmp_path, monkeypatch):
    path = tmp_path / "constraints" / "new.py"
    path.parent.mkdir()
    path.write_text("def f():\n    from ratewise.training import session\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert upward("constraints", path) == ["constraints/new.py imports ratewise.training.session"]


def test_packages_have_no_cycle():
    edges = {}
    for path in files():
        own = package_of(path)
        for module, _ in imported(path, with_calls=False):
            names = module.split(".")
            if names[0] == "ratewise" and len(names) > 1 and names[1] != own and (SOURCE / names[1]).is_dir():
                edges.setdefault(own, set()).add(names[1])
    left = set(edges) - {"__init__"}
    while left:
        free = {package for package in left if not (edges[package] & left) - {package}}
        assert free, f"a cycle among {sorted(left)}"
        left -= free


@pytest.mark.parametrize(
    ("library", "where"), [("torch", {"torch"}), ("matplotlib", {"report"})], ids=["torch", "matplotlib"]
)
def test_large_libraries_are_imported_in_one_package(library, where):
    users = {package_of(path) for path in files() for module, _ in imported(path) if module.split(".")[0] == library}
    assert users <= where


def test_few_files_lie_directly_in_the_package():
    assert len(list(SOURCE.glob("*.py"))) <= MOST_TOP_LEVEL


def test_every_package_has_a_place():
    assert {package_of(path) for path in files()} == ALLOWED.keys()


@pytest.mark.parametrize("name", ROWLESS)
def test_modules_without_rows_import_nothing_that_reads_any(name):
    packages = {module.split(".")[1] for module, _ in imported(SOURCE / name) if module.startswith("ratewise.")}
    assert packages - BASE - {"training"} <= ROWLESS[name]


def test_the_number_of_modules_does_not_grow():
    modules = [path for path in files() if path.name != "__init__.py"]
    core = [path for path in modules if package_of(path) not in OUTSIDE_THE_CORE]
    assert len(modules) <= MOST_MODULES
    assert len(core) <= MOST_CORE_MODULES


def test_modules_are_not_too_long():
    longest = max(files(), key=lambda path: len(path.read_text().splitlines()))
    assert len(longest.read_text().splitlines()) <= LONGEST_MODULE, longest
