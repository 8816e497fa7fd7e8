"""Imports only point down. The contract is in pyproject.toml; here it is kept, complete, and shown to bite."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rb_dspy"
OFF_THE_FLOORS = {"__init__", "__main__", "testing"}
"""The package itself, which hands out the public names, and the fakes, which may play any part."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in ``folder``."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache", "--config", "pyproject.toml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the contract is about, to spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "rb_dspy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b1 kept, 0 broken", done.stdout)


def test_untouched_copy_keeps_the_contract(copy: Path) -> None:
    assert lint(copy).returncode == 0


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("rb_dspy.errors", "rb_dspy.cli"),
        ("rb_dspy.schema", "rb_dspy.program"),
        ("rb_dspy.bank", "rb_dspy.steps"),
        ("rb_dspy.bank", "rb_dspy.environments"),
        ("rb_dspy.signatures", "rb_dspy.errors"),
    ],
)
def test_contract_bites(copy: Path, importer: str, imported: str) -> None:
    path = copy.joinpath(*importer.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with file.open("a") as source:
        source.write(f"\nimport {imported}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{importer} -> {imported}" in done.stdout


def test_every_unit_stands_on_a_floor() -> None:
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = {unit for layer in contract["layers"] for unit in re.findall(r"[\w.]+", layer)}
    prefix = "" if "containers" in contract else "rb_dspy."
    units = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert {prefix + unit for unit in units - OFF_THE_FLOORS} == floors


def test_signatures_import_only_dspy_and_pydantic() -> None:
    allowed = {"__future__", "dspy", "lazy_loader", "pydantic", "rb_dspy.signatures"} | sys.stdlib_module_names
    for file in (PACKAGE / "signatures").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                names = [node.module or ""]
            for name in names:
                assert any(name == a or name.startswith(a + ".") for a in allowed), f"{file.name} imports {name}"
