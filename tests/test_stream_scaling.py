"""What scaling gained, against numbers computed by hand and by brute force."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dspy
import pytest
from hypothesis import given, strategies as st

from rb_dspy import RunReport, Task, TaskResult
from rb_dspy.matts.rollouts import Lost
from rb_dspy.schema import Outcome, Step, Trajectory, Verdict
from rb_dspy.stream import Scaling
from rb_dspy.stream.scaling import pass_at, scaling

Truth = bool | None
"""Of a rollout; None where nobody knows it."""


def outcome(truth: Truth) -> Outcome | None:
    return None if truth is None else Outcome(reward=float(truth), success=truth)


def result(truths: Sequence[Truth], handed_in: int = 0, *, actions: Sequence[str] = (), **more: Any) -> TaskResult:
    """A task whose rollouts had these outcomes and, where ``actions`` says so, did one action each."""
    fields = {"launched": len(truths), "lost": (), "saved": 0, **more}
    resumed, passes = fields.pop("resumed", False), fields.pop("passes", ())
    fields["lost"] = tuple(Lost(rollout_id, "overloaded") for rollout_id in fields["lost"])
    rollouts = tuple(
        Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=actions[n] if actions else str(n)),))
        for n in range(len(truths))
    )
    verdicts = tuple(Verdict(label="unknown") for _ in truths)
    prediction = dspy.Prediction(
        trajectory=rollouts[handed_in], trajectories=rollouts, verdict=verdicts[0], verdicts=verdicts, **fields
    )
    prediction.memory_items = ()
    return TaskResult(
        Task(id="t", instruction="Do it."),
        prediction,
        None if resumed else outcome(truths[handed_in]),
        outcomes=() if resumed else tuple(map(outcome, truths)),
        resumed=resumed,
        passes=tuple(map(outcome, passes)),
    )


def of(*results: TaskResult) -> Scaling:
    found = scaling(results)
    assert found is not None
    return found


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_j_is_the_share_of_all_choices_of_j_that_hold_a_success(truths: list[bool], data: Any) -> None:
    j = data.draw(st.integers(1, len(truths)))
    choices = [any(chosen) for chosen in itertools.combinations(truths, j)]
    assert pass_at(j, len(truths), sum(truths)) == pytest.approx(float(Fraction(sum(choices), len(choices))))


@pytest.mark.parametrize(
    ("j", "rollouts", "successes", "expected"),
    [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (2, 4, 2, 1 - 1 / 6), (4, 4, 1, 1.0), (3, 5, 0, 0.0), (64, 64, 1, 1.0)],
)
def test_pass_at_j_by_hand(j: int, rollouts: int, successes: int, expected: float) -> None:
    assert pass_at(j, rollouts, successes) == pytest.approx(expected)


def test_a_run_by_hand() -> None:
    found = of(
        result([True, False, False], handed_in=0),
        result([False, True, False], handed_in=2, actions=["a", "b", "a"]),
        result([False, False], handed_in=1, launched=3, lost=("one",)),
        result([True, True, None], handed_in=2, saved=1),
    )
    assert [(each.j, each.tasks) for each in found.pass_at] == [(1, 4), (2, 4), (3, 2)]
    assert [each.rate for each in found.pass_at] == pytest.approx([(1 / 3 + 1 / 3 + 0 + 1) / 4, (4 / 3 + 1) / 4, 1.0])
    # The fourth task has no truth of what was handed in, so neither best of n nor the oracle counts it.
    assert (found.compared, found.handed_in, found.solvable) == (3, 1, 2)
    assert found.best_of_n == pytest.approx(1 / 3)
    assert found.oracle == pytest.approx(2 / 3)
    assert found.selector_gap == pytest.approx(1 / 3)
    assert (found.launched, found.lost, found.saved) == (12, 1, 1)
    assert found.mean_distinct == pytest.approx((3 + 2 + 2 + 3) / 4)
    assert found.passes is None


def rates(found: Scaling) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """pass@1, 2, ... and over how many tasks: of what came to its end, and with what was lost as failures."""
    ended, all_ = ([(each.rate, each.tasks) for each in told] for told in (found.pass_at, found.pass_at_with_lost))
    return ended, all_


def test_rollouts_that_were_lost_do_not_raise_pass_at_j_unseen() -> None:
    hard = result([True], launched=4, lost=("a", "b", "c"))
    easy = result([True, False, False, False])
    ended, all_ = rates(of(hard, easy))
    assert ended == [((1 + 1 / 4) / 2, 2), (1 / 2, 1), (3 / 4, 1), (1.0, 1)]
    assert all_ == [(1 / 4, 2), (1 / 2, 2), (3 / 4, 2), (1.0, 2)]
    assert rates(of(hard)) == ([(1.0, 1)], [(1 / 4, 1), (1 / 2, 1), (3 / 4, 1), (1.0, 1)])


def test_a_task_that_broke_as_a_whole_is_lost_with_all_its_rollouts() -> None:
    broke = TaskResult(Task(id="t", instruction="x"), error="all 2 rollouts broke")
    waited = TaskResult(Task(id="t", instruction="x"), error="the judge broke again", resumed=True)
    assert rates(of(result([True, True]), broke, waited)) == ([(1.0, 1)] * 2, [(1 / 2, 2)] * 2)
    scoring = replace(result([True, None]), error="the environment's outcome broke")
    assert rates(of(scoring)) == ([(1.0, 1)], [(1 / 2, 1), (1.0, 1)])


def test_only_what_was_launched_whatever_came_of_others_counts_for_pass_at_j() -> None:
    agreed = result([True, True], saved=2, unconditional=2)
    differed = result([True, False, False, False], unconditional=2)
    found = of(agreed, differed)
    assert rates(found) == ([(3 / 4, 2), (1.0, 2)],) * 2
    assert (found.unconditional, found.launched, found.oracle) == (2, 6, 1.0)
    whole = of(result([True, True], unconditional=2), result([True, False, False, False], unconditional=4))
    assert (whole.unconditional, rates(whole)[0][-1]) == (None, (1.0, 1))


def test_nor_does_a_rollout_that_was_lost_after_those() -> None:
    late = result([True, False, False], launched=4, lost=("3",), unconditional=2)
    early = result([True, False, False], launched=4, lost=("1",), unconditional=2)
    assert early.prediction is not None
    early.prediction.trajectories = tuple(
        rollout.model_copy(update={"rollout_id": id}) for rollout, id in zip(early.rollouts, "023", strict=True)
    )
    assert rates(of(late, early)) == ([(3 / 4, 2), (1.0, 1)], [(1 / 2, 2), (1.0, 2)])
    only_late = result([None, None, True], unconditional=2)
    assert rates(of(only_late)) == ([], [])
    scoring = replace(result([True, False, None], unconditional=2), error="the environment's outcome broke")
    assert rates(of(scoring)) == ([(1 / 2, 1), (1.0, 1)],) * 2


def test_rollouts_that_were_never_begun_or_have_no_truth_are_not_lost() -> None:
    for kept in (
        [result([True, True], saved=2), result([True, False, False, True])],
        [result([None, None], launched=4, lost=("a", "b")), result([True, None])],
        [result([True], passes=[False, True], launched=3, lost=("a",))],
        [result([True, True], resumed=True, launched=3)],
    ):
        found = of(*kept)
        assert found.pass_at == found.pass_at_with_lost


def test_rollouts_of_several_steps_differ_in_any_of_them() -> None:
    def rollout(number: int, *actions: str) -> Trajectory:
        steps = tuple(Step(thought=f"{number}", action=action, observation=f"{number}") for action in actions)
        return Trajectory(task_id="t", rollout_id=str(number), steps=steps)

    rollouts = (rollout(0, "a", "b"), rollout(1, "a", "b"), rollout(2, "b", "a"), rollout(3, "a"))
    one = result([None] * 4)
    assert one.prediction is not None
    one.prediction.trajectories = rollouts
    assert of(one).mean_distinct == 3


def test_what_was_resumed_counts_nothing_but_its_rollouts() -> None:
    found = of(result([True, True], resumed=True, launched=2, saved=5, actions=["a", "a"]), result([True, False]))
    assert (found.launched, found.saved, found.compared, found.mean_distinct) == (2, 0, 1, 1.5)
    assert [each.tasks for each in found.pass_at] == [1, 1]


def test_passes_by_hand() -> None:
    found = of(
        result([True], passes=[False, True]),
        result([False], passes=[True, False]),
        result([False, True], passes=[False, True, False]),
        result([False], passes=[False]),
        result([False], passes=[None, False]),
        result([None], passes=[True, None], launched=3, lost=("one",)),
    )
    assert found.passes is not None
    after = {"after_first": 1, "after_last": 1, "after_any": 3}
    assert found.passes.model_dump() == {"tasks": 4, **after, "handed_in": 1}
    assert (found.pass_at, found.compared, found.best_of_n, found.oracle, found.selector_gap) == (
        (),
        0,
        None,
        None,
        None,
    )


def test_nothing_that_is_scaled_is_no_scaling() -> None:
    plain = TaskResult(Task(id="t", instruction="x"), dspy.Prediction(trajectory=Trajectory(task_id="t")))
    assert scaling([]) is scaling([plain]) is None
    assert scaling([TaskResult(Task(id="t", instruction="x"), error="broke")]) is None


def test_tasks_without_ground_truth_leave_rates_empty() -> None:
    found = of(result([None, None]))
    assert (found.pass_at, found.best_of_n, found.oracle, found.selector_gap) == ((), None, None, None)
    assert found.launched == 2


truths = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=5)


@given(st.lists(truths.flatmap(lambda t: st.tuples(st.just(t), st.integers(0, len(t) - 1))), min_size=1, max_size=6))
def test_a_run_by_brute_force(tasks: list[tuple[list[Truth], int]]) -> None:
    report = RunReport("r", [result(rolled, handed_in) for rolled, handed_in in tasks])
    found = report.summary().scaling
    assert found is not None
    known = [[truth for truth in rolled if truth is not None] for rolled, _ in tasks]
    assert [each.j for each in found.pass_at] == list(range(1, max(map(len, known)) + 1))
    for each in found.pass_at:
        rates = []
        for rolled in known:
            choices = [any(chosen) for chosen in itertools.combinations(rolled, each.j)]
            rates += [Fraction(sum(choices), len(choices))] if choices else []
        assert each.tasks == len(rates)
        assert each.rate == pytest.approx(float(sum(rates) / len(rates)))
    compared = [rolled for rolled, handed_in in tasks if rolled[handed_in] is not None]
    assert found.compared == len(compared)
    assert found.handed_in == sum(rolled[handed_in] is True for rolled, handed_in in tasks)
    assert found.solvable == sum(True in rolled for rolled in compared)
    if found.selector_gap is not None and found.oracle is not None and found.best_of_n is not None:
        assert found.selector_gap >= 0
        assert found.selector_gap == pytest.approx(found.oracle - found.best_of_n)
    read = json.loads(found.model_dump_json())
    assert {"best_of_n", "oracle", "selector_gap"} <= set(read)
    assert read["best_of_n"] == found.best_of_n
