"""Numbers of a run, against numbers computed by hand and by brute force."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import dspy
import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Memory, RunReport, Task, TaskResult, Trajectory
from rb_dspy.matts import Lost
from rb_dspy.schema import Label, Outcome, RoleUsage, Step, Verdict
from rb_dspy.steps import Selection
from rb_dspy.stream import Scaling
from rb_dspy.stream.scaling import pass_at

TASK = Task(id="t", instruction="Do it.")


def outcome(truth: bool | None) -> Outcome | None:
    return None if truth is None else Outcome(reward=float(truth), success=truth)


def done(label: Label | None, truth: bool | None, *, steps: int = 1, **more: Any) -> TaskResult:
    """A task with one rollout."""
    trajectory = Trajectory(task_id="t", steps=(Step(action="go"),) * steps)
    prediction = dspy.Prediction(
        answer="a", trajectory=trajectory, verdict=label and Verdict(label=label), memory=Memory(), memory_items=()
    )
    return TaskResult(TASK, prediction, outcome(truth), **more)


def result(
    truths: Sequence[bool | None], handed_in: int = 0, *, actions: Sequence[str] = (), lost: int = 0, **more: Any
) -> TaskResult:
    """A task with several rollouts that had these outcomes and, if ``actions`` says so, did one action each."""
    rollouts = tuple(
        Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=actions[n] if actions else str(n)),))
        for n in range(len(truths))
    )
    passes = tuple(map(outcome, more.pop("passes", ())))
    prediction = dspy.Prediction(
        trajectory=rollouts[handed_in],
        trajectories=rollouts,
        verdict=None,
        memory_items=(),
        launched=len(truths) + lost,
        lost=(Lost("9", "overloaded"),) * lost,
        selection=more.pop("selection", Selection(handed_in)),
    )
    resumed = more.get("resumed", False)
    outcomes = () if resumed else tuple(map(outcome, truths))
    return TaskResult(
        TASK, prediction, None if resumed else outcomes[handed_in], outcomes=outcomes, passes=passes, **more
    )


def scaling(*results: TaskResult) -> Scaling:
    found = RunReport("r", list(results)).summary().scaling
    assert found is not None
    return found


# The summary


def test_a_run_by_hand() -> None:
    usage = {"agent": RoleUsage(calls=2, prompt_tokens=10, seconds=0.5)}
    report = RunReport(
        "r",
        [
            done("success", True, steps=8, usage=usage),
            done("success", False, steps=6),
            done("failure", False, steps=1),
            done("unknown", True),
            done("success", None, usage=usage),
            done("failure", None, resumed=True),
            TaskResult(TASK, error="no server", usage=usage),
        ],
        skipped=3,
    )
    summary = report.summary()
    assert (summary.tasks, summary.skipped, summary.resumed, summary.infrastructure_errors) == (7, 3, 1, 1)
    assert (summary.scored, summary.solved, summary.success_rate) == (5, 2, 0.4)
    assert str(report.score()) == "2 of 5 solved, 1 broke"
    assert (summary.judged, summary.agreements) == (3, 2)
    assert summary.judge_agreement == pytest.approx(2 / 3)
    assert summary.unknown_verdicts == 1
    assert summary.judge_base_rate == pytest.approx(2 / 3)
    assert (summary.mean_steps, summary.truncated, summary.shown, summary.items) == (3, 0, 0, 0)
    assert summary.usage == {"agent": RoleUsage(calls=6, prompt_tokens=30, seconds=1.5)}
    assert summary.scaling is None
    assert json.loads(summary.model_dump_json())["success_rate"] == 0.4


def test_a_run_of_nothing_has_no_rates() -> None:
    broke = TaskResult(TASK, error="no server")
    for report, rate in (RunReport("r"), None), (RunReport("r", [broke]), 0.0):
        summary = report.summary()
        assert summary.success_rate == rate
        rates = summary.judge_agreement, summary.judge_base_rate
        assert (*rates, summary.mean_steps, summary.scaling) == (None,) * 4
    assert RunReport("r", [broke, done("success", None)]).summary().success_rate is None, "nothing has ground truth"


@given(st.lists(st.tuples(st.sampled_from(["success", "failure", "unknown"]), st.booleans()), max_size=12))
@settings(max_examples=100)
def test_numbers_of_the_judge_by_brute_force(cases: list[tuple[Label, bool]]) -> None:
    summary = RunReport("r", [done(label, truth) for label, truth in cases]).summary()
    judged = [(label == "success", truth) for label, truth in cases if label != "unknown"]
    right = [said is truth for said, truth in judged]
    assert summary.judge_agreement == (sum(right) / len(right) if right else None)
    always = [sum(truth is said for _, truth in judged) for said in (True, False)]
    assert summary.judge_base_rate == (max(always) / len(judged) if judged else None)


def test_rows_of_results_made_by_hand_are_counted() -> None:
    rows = RunReport("mine", [TaskResult(TASK), done("success", True, position=7)]).rows()
    assert [(row["run_id"], row["position"]) for row in rows] == [("mine", 1), ("mine", 7)]


def test_a_report_is_shown_in_one_line() -> None:
    assert repr(RunReport("r", [done("success", True)])) == "RunReport('r': 1 task, 1 of 1 solved)"


# pass@k and the oracle


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
@settings(max_examples=100)
def test_pass_at_j_is_the_share_of_all_choices_of_j_that_hold_a_success(truths: list[bool], data: Any) -> None:
    j = data.draw(st.integers(1, len(truths)))
    choices = [any(chosen) for chosen in itertools.combinations(truths, j)]
    assert pass_at(j, len(truths), sum(truths)) == pytest.approx(sum(choices) / len(choices))


def test_a_scaled_run_by_hand() -> None:
    found = scaling(
        result([True, False, False], handed_in=0),
        result([False, True, False], handed_in=2, actions=["a", "b", "a"]),
        result([False, False], handed_in=1, lost=1),
        result([True, True, None], handed_in=2, selection=Selection(2, votes=(0, 0, 0), note="down")),
    )
    assert [(each.j, each.tasks) for each in found.pass_at] == [(1, 4), (2, 4), (3, 2)]
    assert [each.rate for each in found.pass_at] == pytest.approx([(1 / 3 + 1 / 3 + 0 + 1) / 4, (4 / 3 + 1) / 4, 1.0])
    # The fourth has no ground truth of what was handed in, so neither best of n nor the oracle counts it.
    assert (found.compared, found.handed_in, found.solvable) == (3, 1, 2)
    assert (found.launched, found.lost, found.fallbacks) == (12, 1, 1)
    assert found.mean_distinct == pytest.approx((3 + 2 + 2 + 3) / 4)
    assert found.passes is None


def test_what_was_resumed_counts_only_its_rollouts() -> None:
    found = scaling(result([True, True], resumed=True, actions=["a", "a"]), result([True, False]))
    assert (found.launched, found.compared, found.mean_distinct) == (2, 1, 1.5)
    assert [each.tasks for each in found.pass_at] == [1, 1]


def test_passes_by_hand() -> None:
    found = scaling(
        result([True], passes=[False, True]),
        result([False], passes=[True, False]),
        result([False, True], passes=[False, True, False]),
        result([False], passes=[False]),
        result([False], passes=[None, False]),
    )
    assert found.passes is not None
    assert found.passes.model_dump() == {"tasks": 4, "after_first": 1, "after_last": 1}
    assert (found.pass_at, found.compared, found.handed_in, found.solvable) == ((), 0, 0, 0)


def test_tasks_without_ground_truth_are_not_compared() -> None:
    found = scaling(result([None, None]))
    assert (found.pass_at, found.compared) == ((), 0)
    assert found.launched == 2
