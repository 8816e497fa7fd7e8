"""What an agent is shown during its rollout counts as shown; and a recall that fails costs no rollout."""

from __future__ import annotations

from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank
from rb_dspy.errors import InfrastructureError
from rb_dspy.memories import Attempt
from rb_dspy.steps import Distilled
from rb_dspy.stream import run_stream
from rb_dspy.testing import Prompt, lock
from rb_dspy.text import estimate_tokens
from tests.memories.test_sit_graph import letter, office, show_how
from tests.memories.test_slea import WORDS, Visitor, site, visiting
from tests.memories.worlds import anything, learns, many, new_bank, program

EVERY_PAGE = site(*WORDS)


class Unsure(Visitor):
    """Cannot judge while it is told so."""

    broken = False

    def __call__(self, prompt: Prompt) -> Any:
        if self.broken and "label" in prompt.wants:
            raise OSError("the server is gone")
        return super().__call__(prompt)


def visited(bank: MemoryBank) -> tuple[Any, Unsure]:
    """A program that has learned a word for each page."""
    done = visiting(visitor := Unsure())
    for colour in WORDS:
        done(task=site(colour), bank=bank, run_id="r")
    return done, visitor


def test_what_is_shown_at_a_turn_is_a_use() -> None:
    with new_bank() as bank:
        done, visitor = visited(bank)
        visitor.saw.clear()
        result = done(task=EVERY_PAGE, bank=bank, run_id="r")
        shown = result.experience.shown
        assert {*shown} == {item.id for item in bank.items()}
        beside = [item.id for item in result.memory.items]
        assert shown == (*beside, *result.trajectory.shown.ids)
        assert {bank.uses(id).tasks[-1] for id in shown} == {EVERY_PAGE.id}
        texts = [text.rsplit("The ", 1)[0].strip() for text in visitor.saw]
        told = sum(estimate_tokens(text) for text in texts if text)
        assert abs(result.trajectory.shown.tokens - told) <= len(texts)
        late = result.trajectory.shown.ids[-1]
        assert result.experience.id in bank.rollback(late).experiences


def test_a_distiller_is_told_what_was_shown_at_a_turn() -> None:
    given = list[Attempt]()

    def teach(attempts: Any, bank: MemoryBank) -> Distilled:
        given.extend(attempts)
        return Distilled()

    with new_bank() as bank:
        done, _ = visited(bank)
        done.teach = teach
        shown = done(task=EVERY_PAGE, bank=bank, run_id="r").experience.shown
        assert [item.id for item in given[0].shown] == [*shown]


@pytest.mark.parametrize("removed", ["nothing", "the first", "the last"])
def test_a_resumed_rollout_has_its_uses(removed: str) -> None:
    with new_bank() as bank:
        done, visitor = visited(bank)
        visitor.broken = True
        with pytest.raises(InfrastructureError):
            done(task=EVERY_PAGE, bank=bank, run_id="r")
        visitor.broken = False
        (waiting,) = bank.pending()
        one = waiting.shown[0 if removed == "the first" else -1].id
        if removed != "nothing":  # by another task, which learned meanwhile
            bank.delete(one)
            (waiting,) = bank.pending()
        ids = waiting.trajectories[0].shown.ids
        result = done.resume(waiting)
        assert (one in ids) == (removed != "the first")
        assert {item.id for item in result.memory.items}.isdisjoint(ids)
        assert len(result.experience.shown) == len(WORDS)
        assert result.experience.id in bank.rollback(one).experiences


def test_tools_that_are_named_at_a_turn_are_uses() -> None:
    with new_bank() as bank:
        done = office()
        show_how(done, bank)
        result = done(task=letter(2), bank=bank, run_id="r")
        assert {item.title for item in bank.items(result.experience.shown)} >= {"find -> sign", "sign -> send"}


def test_a_file_does_not_say_what_was_shown() -> None:
    with new_bank() as bank:
        done, _ = visited(bank)
        item = bank.items()[0]
        claim = {"steps": [{"action": "apple"}], "answer": "apple", "shown": {"ids": [item.id]}}
        learned = done.learn(site("red", "red"), claim, bank, outcome=1.0)
        assert learned.shown == ()
        assert learned.task.id not in bank.uses(item.id).tasks


@pytest.mark.parametrize("name", ["synapse", "ace"])
def test_further_rollouts_of_an_interrupted_call_are_shown_the_same(name: str) -> None:
    """In the same form, though more was learned meanwhile."""
    prompts = list[Any]()

    def seen(prompt: Prompt) -> Any:
        if "action" in prompt.wants:
            prompts.append((prompt.system, prompt.turns, prompt.text))
        return anything(prompt)

    with new_bank() as bank:
        scaled = MaTTS(program(name, seen), k=2)
        for task in [lock("Abus", n, "0000", tells=True) for n in range(3)]:
            scaled(task=task, bank=bank, run_id="r")
        task = lock("Abus", 40)
        memory = scaled.recall(task, bank)
        assert memory
        prompts.clear()
        with scaled.backbones.use():
            first = scaled.act(task, memory, scaled.environments, 0, 0.7)
        expected = prompts[0]
        bank.record(task, first, run_id="r", shown=memory.items, origin="env:lock")
        for other in many(5)[3:]:
            scaled(task=other, bank=bank, run_id="r")
        prompts.clear()
        done = scaled.resume(bank.pending()[0], scaled.environments)
        assert len(done.trajectories) == 2
        assert prompts[0] == expected


ASK = ["reme", "mia", "cheatsheet_rs", "memsifter"]


@pytest.mark.parametrize("name", ASK)
def test_an_answer_that_a_recall_cannot_use_costs_no_rollout(name: str) -> None:
    with new_bank() as bank:
        filled(name, bank)
        done = program(name, Mute())
        report = run_stream(done, many(9)[8:], bank, run_id="s")
        (result,) = report.results
        assert (result.solved, result.error, result.prediction.memory.items) == (False, "", ())
        (experience,) = [each for each in bank.experiences() if each.run_id == "s"]
        assert experience.note.count("nothing shown: ") == 1
        assert experience.shown == ()
        assert report.summary().memory_errors == 1
        assert "nothing shown: " in report.rows()[0]["memory_error"]


def test_why_nothing_was_shown_survives_an_interruption() -> None:
    with new_bank() as bank:
        filled("reme", bank)
        with pytest.raises(InfrastructureError):
            program("reme", Mute(breaks=True))(task=many(9)[8], bank=bank, run_id="s")
        done = program("reme").resume(*bank.pending())
        assert "nothing shown: " in done.experience.note
        assert done.memory.problem


@pytest.mark.parametrize("name", ASK)
def test_a_call_of_a_recall_that_fails_is_an_error(name: str) -> None:
    with new_bank() as bank:
        filled(name, bank)
        with pytest.raises(InfrastructureError):
            program(name, Mute(fails=True))(task=many(9)[8], bank=bank, run_id="s")
        assert bank.pending() == []


def test_an_agent_of_the_users_is_shown_nothing_either() -> None:
    with new_bank() as bank:
        filled("memsifter", bank)
        done = program("memsifter", Mute())
        task = many(9)[8]
        memory = done.recall(task, bank)
        assert (bool(memory), memory.problem[:14]) == (False, "nothing shown:")
        learned = program("memsifter").learn(task, [{"action": "0000"}], bank, memory=memory, outcome=0.0)
        assert "nothing shown: " in learned.note


def filled(name: str, bank: MemoryBank) -> None:
    done = program(name)
    for task in many(8):
        done(task=task, bank=bank, run_id="r")


class Mute:
    """Answers no question of a memory before the agent acts."""

    def __init__(self, *, fails: bool = False, breaks: bool = False) -> None:
        self.fails, self.breaks, self.acted = fails, breaks, False

    def __call__(self, prompt: Prompt) -> Any:
        self.acted |= "action" in prompt.wants
        if learns(prompt) and not self.acted:
            if self.fails:
                raise OSError("the server is gone")
            return "Hm."
        if self.breaks and self.acted and "action" not in prompt.wants:
            raise OSError("the server is gone")
        return anything(prompt)
