"""Sequential scaling: the agent looks back at its own work, and what it finds is not lost on anybody."""

from __future__ import annotations

import itertools
import re
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, RefineConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts import Lost, MaTTS
from rb_dspy.schema import Task
from rb_dspy.signatures import CheckAgain, CheckFirst
from rb_dspy.testing import Prompt, Reply
from tests.matts.helpers import Booth, House, Script, asked, booth_task, called, counts, role_of, scaled

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
HINT = "It stayed dark: say the right word."


def _learner(prompt: Prompt) -> Reply:
    """Says the right word once it was told."""
    return {"thought": "Let me see.", "action": "right" if HINT in prompt["observation"] else "wrong"}


def _checker(prompt: Prompt) -> Reply:
    lit = prompt["final_state"].rfind("lights up") > prompt["final_state"].rfind("stays dark")
    return {"findings": "It shines." if lit else HINT, "decision": "confirm" if lit else "revise"}


SCRIPT = Script(roles={"agent": _learner, "checker": _checker})


def _by_role(run: MaTTS, role: str) -> list[Prompt]:
    return [prompt for prompt in asked(run) if role_of(prompt) == role]


def _down(prompt: Prompt) -> Reply:
    raise lm15.ServerError("overloaded")


@BOTH
async def test_what_a_check_finds_stands_in_the_next_turn_of_the_same_episode(
    bank: MemoryBank, asynchronous: bool
) -> None:
    house = House(reopens=True)
    run = scaled(SCRIPT, house, k=3, mode="sequential")
    done = await called(run, asynchronous, task=booth_task(), bank=bank)

    assert house.closed == [1]
    (trajectory,) = done.trajectories
    assert [step.action for step in trajectory.steps] == ["wrong", "right"]
    assert [(check.after, check.decision, check.findings) for check in trajectory.checks] == [
        (1, "revise", HINT),
        (2, "confirm", "It shines."),
    ]
    assert (done.answer, done.verdict.label) == ("right", "success")
    assert (done.launched, done.saved, done.lost) == (3, 0, ())

    before, after = _by_role(run, "agent")
    assert after.system == before.system
    assert after.messages[: len(before.messages)] == before.messages
    assert len(after.messages) == len(before.messages) + 2
    assert HINT not in before.text
    assert "Booth 0 stays dark." in after["observation"]
    assert "Booth 0 waits again." in after["observation"]
    assert after.text.count(HINT) == 1


def test_over_many_passes_the_prompt_only_grows(bank: MemoryBank) -> None:
    def never(prompt: Prompt) -> Reply:
        return {"findings": f"Not yet, of {len(prompt['trajectory'])}.", "decision": "revise"}

    run = scaled(Script(roles={"checker": never}), House(steps=2, reopens=True), k=4, mode="sequential")
    done = run(task=booth_task(), bank=bank)
    turns = _by_role(run, "agent")
    assert len(turns) == len(done.trajectory.steps) == 5  # two, and one more each time the booth is opened again
    for before, after in itertools.pairwise(turns):
        assert after.messages[: len(before.messages)] == before.messages
    assert [check.after for check in done.trajectory.checks] == [2, 3, 4]
    assert all(turns[-1].text.count(check.findings) == 1 for check in done.trajectory.checks)


@BOTH
async def test_where_an_episode_cannot_go_on_the_findings_open_a_fresh_one(
    bank: MemoryBank, asynchronous: bool
) -> None:
    house = House()
    run = scaled(SCRIPT, house, k=3, mode="sequential")
    done = await called(run, asynchronous, task=booth_task(), bank=bank)

    assert house.closed == [1, 1]
    assert [booth.rollout for booth in house.made] == ["0", "1"]
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["0", "1"]
    assert [trajectory.answer for trajectory in done.trajectories] == ["wrong", "right"]
    assert [[check.decision for check in t.checks] for t in done.trajectories] == [["revise"], ["confirm"]]
    assert (done.answer, done.trajectory.rollout_id, done.verdict.label) == ("right", "1", "success")
    assert done.experience.trajectories == done.trajectories

    first, second = _by_role(run, "agent")
    assert HINT not in first.text
    assert (second.turns, second.text.count(HINT)) == (0, 1)
    assert second["observation"].startswith("Booth 1 waits.")
    assert HINT in done.trajectories[1].first_observation
    assert counts(run)["contraster"] == 1  # several attempts are compared
    assert "selector" not in counts(run)  # the last one is handed in


def test_an_environment_may_refuse_to_go_on(bank: MemoryBank) -> None:
    class Stubborn(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            booth = super().__call__(task, rollout_id)
            booth.reopen = lambda: None  # type: ignore[attr-defined]
            return booth

    house = Stubborn(reopens=True)
    done = scaled(SCRIPT, house, k=2, mode="sequential")(task=booth_task(), bank=bank)
    assert len(done.trajectories) == len(house.made) == 2
    assert house.closed == [1, 1]


def test_findings_of_all_attempts_are_told(bank: MemoryBank) -> None:
    def numbered(prompt: Prompt) -> Reply:
        earlier = prompt["earlier_checks"].count("\n") + 1 if "earlier_checks" in prompt else 0
        return {"findings": f"Flaw number {earlier + 1}.", "decision": "revise"}

    run = scaled(Script(roles={"checker": numbered}), k=4, mode="sequential")
    done = run(task=booth_task(), bank=bank)
    assert len(done.trajectories) == 4
    openings = [trajectory.first_observation for trajectory in done.trajectories]
    assert [text.count("Flaw number") for text in openings] == [0, 1, 2, 3]
    assert "- Flaw number 1.\n- Flaw number 2.\n- Flaw number 3." in openings[-1]


def test_the_first_check_is_thorough_and_later_ones_are_short(bank: MemoryBank) -> None:
    run = scaled(SCRIPT, House(reopens=True), k=4, mode="sequential")
    run(task=booth_task(), bank=bank)
    checks = _by_role(run, "checker")
    opening = [signature.instructions.splitlines()[0] for signature in (CheckFirst, CheckAgain)]
    assert [[words in check.system for words in opening] for check in checks] == [
        [True, False],
        [False, True],
        [False, True],
    ]
    assert "earlier_checks" not in checks[0]
    assert checks[1]["earlier_checks"] == f"1. {HINT}"
    assert checks[2]["earlier_checks"] == f"1. {HINT}\n2. It shines."
    assert f"[check of the work so far: revise] {HINT}" in checks[1]["trajectory"]


@pytest.mark.parametrize(("until_confirmed", "made", "saved"), [(True, 3, 3), (False, 6, 0)])
def test_it_can_stop_at_the_first_check_that_confirms(
    bank: MemoryBank, until_confirmed: bool, made: int, saved: int
) -> None:
    config = MattsConfig(mode="sequential", k=6, refine=RefineConfig(until_confirmed=until_confirmed))
    run = scaled(SCRIPT, House(reopens=True), config=config)
    done = run(task=booth_task(), bank=bank)
    assert (done.launched, done.saved) == (made, saved)
    assert counts(run)["checker"] == made - 1
    assert len(done.trajectory.steps) == 2


def test_checks_stand_in_what_the_judge_and_the_distiller_read(bank: MemoryBank) -> None:
    run = scaled(SCRIPT, House(reopens=True), k=3, mode="sequential")
    run(task=booth_task(), bank=bank)
    (judged,), (distilled,) = _by_role(run, "judge"), _by_role(run, "distiller")
    for prompt in (judged, distilled):
        text = prompt["trajectory"]
        assert f"[check of the work so far: revise] {HINT}" in text
        assert "[check of the work so far: confirm] It shines." in text
        assert text.index("action: wrong") < text.index(HINT) < text.index("action: right") < text.index("It shines.")


def test_checks_stand_in_what_the_contraster_reads(bank: MemoryBank) -> None:
    run = scaled(SCRIPT, k=2, mode="sequential")
    run(task=booth_task(), bank=bank)
    (contrasted,) = _by_role(run, "contraster")
    assert f"[check of the work so far: revise] {HINT}" in contrasted["attempts"]


def test_one_pass_is_not_checked(bank: MemoryBank) -> None:
    run = scaled(SCRIPT, House(reopens=True), k=1, mode="sequential")
    done = run(task=booth_task(), bank=bank)
    assert counts(run) == {"agent": 1, "judge": 1, "distiller": 1}
    assert done.trajectory.checks == ()
    assert (done.launched, done.saved) == (1, 0)


def test_a_check_that_cannot_be_read_confirms(bank: MemoryBank) -> None:
    run = scaled(Script(roles={"checker": lambda prompt: "hm"}), House(reopens=True), k=2, mode="sequential")
    (check,) = run(task=booth_task(), bank=bank).trajectory.checks
    assert check.decision == "confirm"
    assert check.findings.startswith("not checked: ")


def test_an_attempt_that_cannot_be_read_is_not_gone_on_with(bank: MemoryBank) -> None:
    def junk_at_first(prompt: Prompt) -> Reply:
        return _learner(prompt) if HINT in prompt["observation"] else "I am lost."

    script = Script(roles={"agent": junk_at_first, "checker": _checker})
    done = scaled(script, House(reopens=True), k=2, mode="sequential")(task=booth_task(), bank=bank)
    assert [trajectory.stop_reason for trajectory in done.trajectories] == ["unreadable", "done"]
    assert done.answer == "right"


def test_what_the_checks_used_is_part_of_what_the_rollout_used(bank: MemoryBank) -> None:
    done = scaled(SCRIPT, House(reopens=True), k=3, mode="sequential")(task=booth_task(), bank=bank)
    assert done.trajectory.usage["agent"].calls == done.usage["agent"].calls == 2 + 2


@pytest.mark.parametrize(
    ("reopens", "where", "rollout", "lost", "actions", "passes"),
    [
        (True, "reopen", "0", "0", [["wrong"]], 2),
        (True, "step 1", "0", "0", [["wrong"]], 2),
        (True, "step 2", "0", "0", [["wrong", "wrong"]], 3),
        (False, "factory", "1", "1", [["wrong"]], 2),
        (False, "reset", "1", "1", [["wrong"]], 2),
        (False, "step 0", "1", "1", [["wrong"]], 2),
        (False, "answer", "1", "1", [["wrong"]], 2),
        (False, "reset", "2", "2", [["wrong"], ["wrong"]], 3),
    ],
)
@BOTH
async def test_what_breaks_later_costs_nothing_that_was_reached(
    bank: MemoryBank,
    asynchronous: bool,
    reopens: bool,
    where: str,
    rollout: str,
    lost: str,
    actions: list[list[str]],
    passes: int,
) -> None:
    script = Script(roles={"checker": lambda prompt: {"findings": HINT, "decision": "revise"}})
    house = House(reopens=reopens, faults={rollout: (where, ValueError)})
    done = await called(scaled(script, house, k=4, mode="sequential"), asynchronous, task=booth_task(), bank=bank)
    assert [[step.action for step in trajectory.steps] for trajectory in done.trajectories] == actions
    assert [trajectory.stop_reason for trajectory in done.trajectories] == ["done"] * len(actions)
    assert sum(len(trajectory.checks) for trajectory in done.trajectories) == passes - 1
    assert [one.rollout_id for one in done.lost] == [lost]
    assert "ValueError" in done.lost[0].error
    assert (done.launched, done.saved) == (passes, 0)
    assert bank.experiences() == [done.experience]
    assert bank.pending() == []
    assert house.closed == [1] * len(house.made)


class _Odd(House):
    """From the second on, its booths have ``odd`` at ``where``, which is nothing that an environment may give."""

    def __init__(self, where: str, odd: object) -> None:
        super().__init__()
        self.where, self.odd = where, odd

    def __call__(self, task: Task, rollout_id: str) -> Booth:
        booth = super().__call__(task, rollout_id)
        if rollout_id != "0":
            setattr(booth, self.where, lambda: self.odd)
        return booth


@pytest.mark.parametrize(
    ("where", "odd", "says"),
    [
        ("answer", 42, "answer is 42"),
        ("valid_actions", [1, 2], r"\[1, 2\]"),
        ("valid_actions", "on", "actions are 'on'"),
    ],
)
@BOTH
async def test_nor_does_what_no_environment_may_give(
    bank: MemoryBank, asynchronous: bool, where: str, odd: object, says: str
) -> None:
    script = Script(roles={"checker": lambda prompt: {"findings": HINT, "decision": "revise"}})
    house = _Odd(where, odd)
    done = await called(scaled(script, house, k=2, mode="sequential"), asynchronous, task=booth_task(), bank=bank)
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["0"]
    assert re.search(f"environment's .*{says}; expected", done.lost[0].error)
    assert house.closed == [1, 1]


@BOTH
async def test_nor_does_a_bug_that_is_not_ours(bank: MemoryBank, asynchronous: bool) -> None:
    class Client(dspy.Predict):  # type: ignore[misc]
        def forward(self, **kwargs: Any) -> Any:
            raise ValueError("a bug")

        async def aforward(self, **kwargs: Any) -> Any:
            raise ValueError("a bug")

    house = House(reopens=True)
    run = scaled(SCRIPT, house, k=3, mode="sequential")
    run.refine.first = Client(CheckFirst)
    done = await called(run, asynchronous, task=booth_task(), bank=bank)
    assert [step.action for step in done.trajectory.steps] == ["wrong"]
    assert done.lost == (Lost("0", "agent (scripted/lm) broke: ValueError: a bug"),)
    assert house.closed == [1]
    assert bank.experiences() == [done.experience]


def test_steps_that_a_broken_correction_had_taken_are_kept(bank: MemoryBank) -> None:
    class Longer(Booth):
        def step(self, action: str) -> tuple[str, bool]:
            observation, _ = super().step(action)
            return observation, len(self.words) in (1, 3)

        def reopen(self) -> str:
            return "Go on."

    class Hall(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            self.made.append(Longer(self, rollout_id))
            return self.made[-1]

    house = Hall(faults={"0": ("step 2", ValueError)})
    script = Script(roles={"checker": lambda prompt: {"findings": HINT, "decision": "revise"}})
    run = scaled(script, house, k=3, mode="sequential")
    trajectory = run(task=booth_task(), bank=bank).trajectory
    assert len(trajectory.steps) == 2
    assert trajectory.stop_reason == "done"  # not that a step limit had stopped it
    (judged,) = _by_role(run, "judge")
    assert "step limit" not in judged["final_state"]


def test_a_check_that_breaks_costs_nothing_that_was_reached(bank: MemoryBank) -> None:
    done = scaled(Script(roles={"checker": _down}), House(reopens=True), k=3, mode="sequential")(
        task=booth_task(), bank=bank
    )
    assert [step.action for step in done.trajectory.steps] == ["wrong"]
    assert [one.rollout_id for one in done.lost] == ["0"]
    assert isinstance(done.lost[0], Lost)
    assert "overloaded" in done.lost[0].error
    assert (done.launched, done.saved) == (1, 0)


@pytest.mark.parametrize("where", ["factory", "reset", "step 0", "answer"])
def test_what_breaks_the_first_attempt_is_raised(bank: MemoryBank, where: str) -> None:
    house = House(reopens=True, faults={"0": (where, ValueError)})
    with pytest.raises(InfrastructureError, match="ValueError"):
        scaled(SCRIPT, house, k=3, mode="sequential")(task=booth_task(), bank=bank)
    assert house.closed == [1] * len(house.made)
    assert (bank.pending(), bank.experiences()) == ([], [])


def test_several_attempts_that_wait_are_learned_from_together(bank: MemoryBank) -> None:
    broken = Script(roles={**SCRIPT.roles, "contraster": _down})
    with pytest.raises(InfrastructureError, match="contraster"):
        scaled(broken, k=2, mode="sequential")(task=booth_task(), bank=bank)
    run = scaled(SCRIPT, k=2, mode="sequential")
    done: Any = run.resume(*bank.pending())
    assert counts(run) == {"contraster": 1}
    assert (done.answer, len(done.trajectories)) == ("right", 2)


@BOTH
@pytest.mark.parametrize("where", ["answer", "valid_actions"])
async def test_a_step_that_was_made_stands_when_what_is_read_after_it_breaks(
    bank: MemoryBank, asynchronous: bool, where: str
) -> None:
    class Mute(Booth):
        """One step; opened again, it takes the second, and then cannot tell any more."""

        def step(self, action: str) -> tuple[str, bool]:
            observation, _ = super().step(action)
            return observation, len(self.words) == 1 or where == "answer"

        def reopen(self) -> str:
            return "Go on."

        def answer(self) -> str | None:
            return self._told("answer") or super().answer()

        def valid_actions(self) -> None:
            self._told("valid_actions")

        def _told(self, what: str) -> None:
            if what == where and len(self.words) == 2:
                raise ValueError("no voice")

    class Hall(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            self.made.append(Mute(self, rollout_id))
            return self.made[-1]

    script = Script(roles={"checker": lambda prompt: {"findings": HINT, "decision": "revise"}})
    done = await called(scaled(script, Hall(), k=3, mode="sequential"), asynchronous, task=booth_task(), bank=bank)
    assert [step.action for step in done.trajectory.steps] == ["wrong", "wrong"]
    assert (done.answer, done.trajectory.stop_reason) == ("wrong", "done")
    assert "no voice" in done.lost[0].error


@pytest.mark.parametrize("where", ["reset", "step", "reopen", "agent"])
def test_text_that_no_provider_takes_is_shown_as_it_is_kept(bank: MemoryBank, where: str) -> None:
    """Else the call that would send it raises what is not ours, and costs what was reached before."""

    class Halved(Booth):
        def reset(self, task: Task) -> str:
            return super().reset(task) + ("\ud83d" if where == "reset" else "")

        def step(self, action: str) -> tuple[str, bool]:
            observation, _ = super().step(action)
            return observation + ("\ud83d" if where == "step" else ""), len(self.words) > 1

        def reopen(self) -> str:
            return "Go on." + ("\ud83d" if where == "reopen" else "")

    def factory(task: Task, rollout_id: str) -> Booth:
        return Halved(House(), rollout_id)

    def agent(prompt: Prompt) -> Reply:
        return {"thought": "Hm\ud83d" if where == "agent" else "Hm", "action": "wrong"}

    script = Script(roles={"agent": agent, "checker": lambda prompt: {"findings": HINT, "decision": "revise"}})
    run = scaled(script, k=3, mode="sequential")
    done = run(task=booth_task(), bank=bank, environments=factory)
    assert done.lost == ()
    assert len(done.trajectory.steps) == 4
