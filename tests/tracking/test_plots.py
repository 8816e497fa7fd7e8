"""Pictures and prices: right numbers, and no failure where there is nothing to show."""

from __future__ import annotations

import io
from typing import Any

import dspy
import pytest

from rb_dspy import Outcome, TaskResult, Verdict
from rb_dspy.schema import MemoryItem, Provenance, RoleUsage, Trajectory
from rb_dspy.steps import Memory
from rb_dspy.tracking import plots
from rb_dspy.tracking.prices import cost, costs
from tests.worlds import lock


def result(number: int, solved: bool | None, label: Any, *titles: str) -> TaskResult:
    task = lock("acme", number)
    items = tuple(
        MemoryItem(
            id=title,
            scope="x",
            seq=1,
            title=title,
            description="d",
            content="c",
            polarity="success",
            provenances=(Provenance(experience_id="e", task_id="t"),),
        )
        for title in titles
    )
    prediction = dspy.Prediction(
        answer="", trajectory=Trajectory(task_id=task.id), verdict=Verdict(label=label), memory=Memory(items=items)
    )
    outcome = None if solved is None else Outcome(reward=float(solved), success=solved)
    return TaskResult(task, prediction, outcome)


RESULTS = [
    result(0, True, "success"),
    result(1, False, "success", "Use $what$ worked"),
    result(2, True, "failure", "Use $what$ worked", "Look first"),
    result(3, None, "unknown", "Look first"),
    TaskResult(lock("acme", 4), error="broke"),
]


def drawn(figure: Any) -> list[str]:
    """The texts of a figure, which can be drawn."""
    figure.savefig(io.BytesIO(), format="png")
    (axes,) = figure.axes
    return [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())]


def test_the_learning_curve_is_the_share_solved_so_far() -> None:
    (axes,) = plots.learning_curve(RESULTS).axes
    x, y = axes.lines[0].get_data()
    assert list(x) == [1, 2, 3]
    assert list(y) == pytest.approx([1, 0.5, 2 / 3])


def test_the_judge_is_counted_against_the_truth() -> None:
    assert drawn(plots.judge_confusion(RESULTS))[:6] == ["1", "1", "0", "1", "0", "0"]


def test_lessons_are_counted_by_what_came_of_them() -> None:
    figure = plots.item_use(RESULTS)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [r"Use \$what\$ worked", "Look first"]
    assert [bar.get_width() for bar in axes.patches] == [1, 1, 1, 1]
    drawn(figure)


@pytest.mark.parametrize("results", [[], RESULTS[4:], RESULTS[:1]])
def test_nothing_to_show_is_shown(results: list[TaskResult]) -> None:
    for draw in (plots.learning_curve, plots.judge_confusion, plots.item_use):
        drawn(draw(results))


def test_prices_are_those_of_the_list_and_nobody_elses() -> None:
    assert cost("openai/gpt-4o-mini", 1_000_000, 0) == (pytest.approx(0.15), 0)
    assert cost("local/anything", 10, 10) == (0, 0)
    assert cost("scripted/lm", 10, 10) is None
    assert cost("gpt-4o-mini", 1_000_000, 0) == cost("openai/gpt-4o-mini", 1_000_000, 0)
    assert cost("anthropic/claude-sonnet-4-5", 1_000_000, 0) == cost("claude-sonnet-4-5", 1_000_000, 0)
    assert cost("claude-sonnet-4-5", 10, 10) is not None
    assert cost("bedrock/amazon.nova-lite-v1:0", 10, 10) is not None
    for elsewhere in ("myproxy/gpt-4o", "ollama_chat/gpt-4o", "anthropic/gpt-4o", "/gpt-4o", "open/gpt-4o"):
        assert cost(elsewhere, 10, 10) is None
    usage = {"agent": RoleUsage(prompt_tokens=1_000_000), "judge": RoleUsage(prompt_tokens=1)}
    assert costs(usage, {"agent": "gpt-4o-mini", "judge": "unheard/of"}) == {"agent": pytest.approx(0.15)}
