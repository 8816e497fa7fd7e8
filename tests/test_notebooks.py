"""The notebooks run from top to bottom, with the small model."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.model
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("RB_MODEL", "local/smollm2-135m")
    monkeypatch.setenv("RB_TASKS", "2")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = [run("".join(cell["source"]), names) for cell in cells]
    assert len(shown) > 3
    assert sum(hasattr(each, "_repr_html_") for each in shown) >= 1


def run(source: str, names: dict[str, Any]) -> Any:
    """The value of a cell, as a notebook shows it: that of its last expression."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() and value if hasattr(value, "_repr_html_") else repr(value)
