"""Imports only point down. The contract is in pyproject.toml; here it is kept, complete, and shown to bite."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rb_dspy"
OFF_THE_FLOORS = {"__init__", "__main__", "testing"}
"""The package itself, which hands out the public names, and the fakes, which may play any part."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in ``folder``."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache", "--config", "pyproject.toml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b1 kept, 0 broken", done.stdout)


def test_contract_bites(tmp_path: Path) -> None:
    """An import that points up, one of a neighbor, and one of the signatures."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "rb_dspy", ignore=shutil.ignore_patterns("__pycache__"))
    wrong = {"bank.bank": "steps.judge", "environments.scored": "bank.bank", "signatures.judge": "errors"}
    for importer, imported in wrong.items():
        with (tmp_path / "rb_dspy" / f"{importer.replace('.', '/')}.py").open("a") as source:
            source.write(f"\nimport rb_dspy.{imported}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    for importer, imported in wrong.items():
        assert f"rb_dspy.{importer} -> rb_dspy.{imported}" in done.stdout


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
