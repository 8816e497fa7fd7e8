"""Downstream credit: what lessons do for other tasks of their kind."""

from __future__ import annotations

import itertools
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import MemoryDraft, ReasoningBank, Task
from rb_dspy.compile.credit import Credit, Credited, Pair
from rb_dspy.compile.examples import distill_example
from rb_dspy.compile.metric import metric_for
from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.schema import Trajectory, Verdict
from rb_dspy.steps import Distilled
from rb_dspy.testing import Lock, Prompt, Reply
from tests.compile.school import Hushed, hushed
from tests.worlds import answers, backbones, lock, prompts


def program(script: Any = answers) -> ReasoningBank:
    return ReasoningBank(backbones=backbones(script), environments=Lock.make)


def lesson(code: str) -> MemoryDraft:
    return MemoryDraft(title="Use the code", description="For locks.", content=f"For all locks the code is {code}.")


def credited(drafts: list[MemoryDraft], *codes: str, script: Any = answers, rollouts: int = 1) -> Credited:
    siblings = [lock("Abus", number, code) for number, code in enumerate(codes)]
    credit = Credit(program(script))
    return credit.of(drafts, siblings, [credit.without(task, rollouts) or 0.0 for task in siblings], rollouts)


def test_a_lesson_that_opens_locks_is_credited_and_one_that_shuts_them_debited() -> None:
    helped = credited([lesson("4711")], "4711", "4711", "0000")
    assert [(pair.without, pair.given) for pair in helped.pairs] == [(0, 1), (0, 1), (1, 0)]
    assert helped.credit == pytest.approx(1 / 3)
    assert helped.score == pytest.approx(2 / 3)
    assert credited([lesson("4711")], "0000").score == 0
    assert credited([lesson("4711")], "4711").score == 1
    assert credited([lesson("9999")], "4711").score == 0.5


def test_a_rollout_that_failed_with_the_lesson_is_kept() -> None:
    (pair,) = credited([lesson("4711")], "0000").pairs
    assert pair.failed is not None
    assert pair.failed.answer == "4711"
    (pair,) = credited([lesson("4711")], "4711").pairs
    assert pair.failed is None


def test_only_the_agent_is_asked_and_both_sides_have_the_same_rollouts() -> None:
    seen: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        seen.append(prompt)
        return answers(prompt)

    with dspy.context(trace=[]):
        credited([lesson("4711")], "4711", script=script, rollouts=3)
        assert dspy.settings.trace == []
    assert all("action" in prompt.wants for prompt in seen)
    without, given = ([p.seed for p in seen if ("code is" in p["memory"]) is had] for had in (False, True))
    assert without == given
    assert len(set(given)) == 3


def test_rollouts_are_counted_one_by_one() -> None:
    def script(prompt: Prompt) -> Reply:
        lucky = "code is" in prompt["memory"] and prompt.seed is not None
        return {"thought": "", "action": "4711" if lucky else "0000"}

    found = credited([lesson("4711")], "4711", script=script, rollouts=4)
    assert found.credit == 0.75
    assert found.pairs[0].failed is not None


def test_who_is_looked_at_is_seen_in_other_rollouts_than_those_that_count() -> None:
    numbers: list[int] = []

    def script(prompt: Prompt) -> Reply:
        numbers.append(prompt.seed or 0)
        return {"thought": "", "action": "4711" if prompt.seed in (2, 3) else "0000"}

    credit = Credit(program(script))
    assert (credit.without(lock("Abus", 0), 2), credit.solved(lock("Abus", 0), 2)) == (0.0, True)
    assert numbers == [0, 1, 2, 3]
    numbers.clear()
    assert credit.solved(lock("Abus", 0), 3) is False
    assert numbers == [3, 4]  # the first that fails ends it
    dark = ReasoningBank(backbones=backbones(script), environments=Hushed.of)
    assert Credit(dark).solved(hushed(lock("Abus", 0)), 2) is None


def test_an_agent_at_temperature_0_does_not_draw() -> None:
    still = ProgramConfig(act=ActConfig(temperature=0))
    assert Credit(program()).draws()
    assert not Credit(ReasoningBank(backbones=backbones(), config=still)).draws()
    assert not Credit(ReasoningBank(backbones=backbones(temperature=0))).draws()
    warm = backbones(temperature=0.5)  # the model's own goes first
    assert Credit(ReasoningBank(backbones=warm, config=still)).draws()


def test_no_lesson_changes_nothing_and_asks_nobody() -> None:
    made = program()
    found = Credit(made).of([], [lock("Abus", 0)], [0.25])
    assert (found.score, [(pair.without, pair.given) for pair in found.pairs]) == (0.5, [(0.25, 0.25)])
    assert prompts(made.backbones) == []  # type: ignore[arg-type]


def test_a_sibling_that_breaks_counts_on_neither_side() -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 0" in prompt.text and "code is" in prompt["memory"]:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    found = credited([lesson("4711")], "4711", "4711", script=script)
    assert [pair.task.id for pair in found.pairs] == ["lock/Abus/1"]
    assert len(found.broken) == 1
    assert "overloaded" in found.broken[0]
    assert found.credit == 1


class HushedOnce(Hushed):
    """Nobody knows how it ended where 4711 was tried, as a lesson says."""

    def outcome(self) -> Any:
        return None if self.answer() == "4711" else Lock.outcome(self)


def test_what_nobody_knows_is_neither_solved_nor_failed() -> None:
    plain, dark = lock("Abus", 0, "0000"), hushed(lock("Abus", 1))
    made = ReasoningBank(backbones=backbones(), environments=HushedOnce.of)
    credit = Credit(made)
    assert (credit.without(plain), credit.without(dark)) == (1.0, 0.0)
    (pair,) = credit.of([lesson("4711")], [dark], [0.0]).pairs
    assert (pair.given, pair.failed, pair.untold) == (0.0, None, True)
    made.environments = Hushed.of
    assert Credit(made).without(dark, rollouts=2) is None
    made.environments = HushedOnce.of
    rollout = Trajectory(task_id=plain.id)
    gold = distill_example(plain, rollout, Verdict(label="success", reasons=""), [dark], [1.0], 1)
    told = metric_for("distill", made)(
        gold, dspy.Prediction(distilled=Distilled(drafts=(lesson("4711"),), note="")), None, "distill.success"
    )
    assert told.score == 0.0  # else lessons would gain by what an environment cannot tell of them
    assert 'Not known: how "Open the lock that Abus made, serial 1." ended with them' in told.feedback
    assert "Misled" not in told.feedback


def test_credit_stays_in_its_range() -> None:
    task = Task(id="t", instruction="Do it.")
    for without, given in itertools.product((0.0, 0.5, 1.0), repeat=2):
        found = Credited((Pair(task, without, given),))
        assert found.credit == given - without
        assert 0 <= found.score <= 1
    assert Credited().score == 0.5
