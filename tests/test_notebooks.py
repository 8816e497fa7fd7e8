"""The notebooks run from top to bottom, with a scripted model on loopback."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.testing import Prompt, Reply
from tests.served import Served, served

__all__ = ["served"]

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    served.play = guess
    monkeypatch.setenv("RB_MODEL", "openai/scripted")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{served.port}/v1")
    monkeypatch.setenv("RB_TASKS", "2")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = [run("".join(cell["source"]), names) for cell in cells]
    assert len(shown) > 3
    assert sum(hasattr(each, "_repr_html_") for each in shown) >= 1


def guess(prompt: Prompt) -> Reply:
    """Plays every role, badly."""
    if "action" in prompt.wants:
        return {"thought": "A guess.", "action": "Riga"}
    if "label" in prompt.wants:
        return {"reasons": "It says so.", "label": "failure"}
    return {"memory_items": [{"title": "Refunds", "content": "Refunds above 100 euros are signed by Lena."}]}


def run(source: str, names: dict[str, Any]) -> Any:
    """The value of a cell, as a notebook shows it: that of its last expression."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() and value if hasattr(value, "_repr_html_") else repr(value)
