"""A compile that breaks while it looks for better prompts hands out the best that it had, with a folder or without."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

import rb_dspy
from rb_dspy import errors
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.state import load_program, prompts_of
from rb_dspy.errors import BackboneError, InfrastructureError, RBError, Unscored
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program, streams
from tests.compile.teacher import EVIDENCE, pupil


class Falls:
    """Plays all roles. One lock of dev fools it always, so no prompt is rated 1; once a better prompt is known, the
    judge breaks."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._best: list[float] = []
        self._fools = str(streams().dev.tasks[0].env_args["code"])[::-1]
        self.lm = scripted_lm(self._script)

    def on_progress(self, progress: Progress) -> None:
        if progress.best is not None:
            self._best.append(progress.best)

    def _script(self, prompt: Prompt) -> Reply:
        if "label" not in prompt.wants:
            return pupil(prompt)
        if self._best and self._best[-1] > self._best[0]:
            raise self._error
        if self._fools in prompt["task"]:
            opened = "It stays shut" not in prompt["trajectory"]
            return {"reasons": "It is said so.", "label": "failure" if opened else "success"}
        return pupil(prompt)

    def run(self, **kwargs: Any) -> Any:
        given = {"optimizer": "gepa", "stage": "judge", **kwargs}
        return compiled(program=program(self.lm), on_progress=self.on_progress, **given)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (lm15.ServerError("overloaded"), InfrastructureError, "10 metric calls in a row broke; the last one: .*overl"),
        (lm15.AuthError("bad key"), BackboneError, "bad key"),
    ],
)
@pytest.mark.parametrize("with_folder", [False, True])
def test_what_breaks_an_optimizer_does_not_take_the_best_so_far_with_it(
    tmp_path: Path, error: Exception, kind: type[RBError], said: str, with_folder: bool
) -> None:
    folder = tmp_path / "here" if with_folder else None
    with pytest.raises(Unscored, match=rf"the prompts that were found are .*{said}") as caught:
        Falls(error).run(folder=folder)
    assert type(caught.value.__cause__) is kind
    assert caught.value.exit_code == kind.exit_code
    found = caught.value.program
    assert found.judge.predict.signature.instructions.endswith(EVIDENCE)
    assert found.backbones is None
    if folder is not None:
        assert str(folder / "best.json") in str(caught.value)
        kept = program()
        load_program(kept, folder / "best.json")
        assert prompts_of(kept) == prompts_of(found)


class Odd(dspy.LM):
    """Breaks in a way that no language model does, once it has said that it is ready."""

    def __init__(self) -> None:
        super().__init__("odd/one", cache=False)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        if prompt and "Reply with the word" in prompt:
            return ["ready"]
        raise ZeroDivisionError("no such number")


def test_an_optimizer_whose_own_code_breaks_is_named_in_a_typed_error() -> None:
    with pytest.raises(RBError, match="miprov2 itself broke: ZeroDivisionError: no such number") as caught:
        compiled(optimizer="miprov2", stage="judge", reflection=Odd())
    assert not isinstance(caught.value, Unscored)  # nothing better was found before


def test_what_the_callers_own_function_raises_is_the_callers() -> None:
    class Enough(Exception):
        """Stop here."""

    def stop(progress: Progress) -> None:
        if progress.metric_calls > 3:
            raise Enough

    with pytest.raises(Enough):
        compiled(optimizer="gepa", stage="judge", on_progress=stop)


def test_a_compile_raises_nothing_of_ours_that_the_tree_of_errors_does_not_draw() -> None:
    known = {name for name, value in vars(errors).items() if isinstance(value, type)}
    for path in (Path(rb_dspy.__file__).parent / "compile").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                assert not bases & known, f"{path.name}: {node.name}"
    assert re.search(r"── Unscored ", errors.__doc__ or "")
    assert issubclass(Unscored, RBError)
    assert not issubclass(Unscored, InfrastructureError)
