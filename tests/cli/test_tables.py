"""Tables as they are read in a terminal of 80 columns."""

from __future__ import annotations

import pytest

from rb_dspy import ReasoningBank
from rb_dspy.cli.common import out
from rb_dspy.cli.scored import print_scores
from rb_dspy.cli.work.compiled import print_result
from rb_dspy.cli.work.measured import print_matrix
from rb_dspy.compile.matrix import Cell, Matrix
from rb_dspy.compile.result import Scores
from rb_dspy.compile.scores import Comparison, Estimate
from tests.tracking.made import compiled


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def of(mean: float, low: float, high: float) -> Estimate:
    return Estimate(mean=mean, low=low, high=high, tasks=12, orders=3, unit="template", of_runs=True)


BEFORE, AFTER, CHANGE = of(0.42, 0.17, 0.7), of(1, 0.7, 1), of(0.58, 0.14, 0.86)


def test_scores_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = Comparison(before=BEFORE, after=AFTER, difference=CHANGE)
    print_scores(out, Scores(dev=found, held_out=found), "tasks solved")
    head, dev, held_out, *_, told = capsys.readouterr().out.splitlines()
    assert head.split() == ["before", "after", "difference", "templates"]
    assert dev.split()[0] == "dev"
    assert held_out == "held-out  0.42 [0.17, 0.70]  1.00 [0.70, 1.00]  +0.58 [+0.14, +0.86]         12"
    assert "…" not in told


def test_a_matrix_has_intervals_and_says_what_its_columns_are(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [
        Cell(program="seed", backbone="gpt-4o-mini", success=BEFORE, judge_agreement=0.42, tokens=12345),
        Cell(program="mail", backbone="gpt-4o-mini", success=AFTER, difference=CHANGE, judge_agreement=1,
             judge_base_rate=0.75, judge_balanced=0.83, broken=2),
    ]  # fmt: skip
    print_matrix(Matrix(stream="mail", orders=3, cells=cells))
    head, first, second, below, last, told = capsys.readouterr().out.splitlines()
    assert max(map(len, (head, first, second, below, last))) <= 80
    assert head.split() == ["backbone", "program", "solved", "against", "uncompiled", "judge", "tokens"]
    assert first.split() == ["gpt-4o-mini", "uncompiled", "42%", "[17,", "70]", "42%", "12.3k"]
    assert second.split()[2:8] == ["100%", "[70,", "100]", "+0.58", "[+0.14,", "+0.86]"]
    assert below.split() == ["2", "broke", "better", "base", "75%"]
    assert last.split() == ["bal.", "83%"]
    assert "bal.: the mean of its right shares of solved and of unsolved tasks" in told
    assert "judge: in how many of the tasks that it judged it said what ground truth says" in told


def test_a_compile_says_why_nothing_was_tried_and_why_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    program = ReasoningBank(backbones={"agent": "openai/any"})
    found = compiled(program)
    found.proposals_failed, found.proposals_unreadable, found.unreadable_proposal = 18, 17, "Sure! Here"
    found.candidates[0].score = 1.0
    print_result(found, program, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert "answered 17 times in a form that cannot be read; one began 'Sure! Here', and once not at all" in shown
    assert "ended before the budget was spent: dev is at 1.00" in shown
