"""The controls of an evaluation, over the program's own memory and over others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import (
    MaTTS,
    MemoryBank,
    MemoryDraft,
    ProgramConfig,
    ReasoningBank,
    RetrieveConfig,
    Task,
    evaluate,
)
from rb_dspy.errors import InputError
from rb_dspy.evaluation import Arm, read_records
from rb_dspy.memories import Base, MemorySystem, system_of
from rb_dspy.schema import Verdict
from rb_dspy.steps import Memory
from rb_dspy.testing import HashEmbedder, Prompt, lock, locks, locksmith, scripted_program
from rb_dspy.testing.locks import GUESS, MAKERS, code_of
from tests.memories.worlds import anything, many, new_bank, program

LESSONS = [
    MemoryDraft(title=f"Locks of {maker}", description="", content=f"They open with {code_of(maker)}.")
    for maker in MAKERS
]
CONTROLS = ["none", "placebo", "shuffled", "raw", "bank", "success_only", "true_verdicts", "oracle"]


class Watched:
    """A program whose prompts are kept, by the fields that are asked for."""

    def __init__(self, memory: str | MemorySystem | None = None, verdict: str = "") -> None:
        self.asked: list[Prompt] = []

        def script(prompt: Prompt) -> Any:
            self.asked.append(prompt)
            if verdict and "label" in prompt.wants:
                return {"reasons": "", "label": verdict}
            return (locksmith if memory is None else anything)(prompt)

        self.program = scripted_program(script) if memory is None else program(memory, script)  # type: ignore[arg-type]

    def calls(self, field: str) -> int:
        return sum(field in prompt.wants for prompt in self.asked)

    def shown(self) -> str:
        """All that the agent read."""
        return "".join(prompt.text for prompt in self.asked if "action" in prompt.wants)


def played(arm: Arm, tasks: Any = None) -> Any:
    """The report of an arm, beside one without memory."""
    other = Arm(scripted_program(), "none")
    made = tasks or locks(8)
    return evaluate({"base": other, "arm": arm}, made, orders=1, embedder=HashEmbedder(), lessons=LESSONS).arms["arm"]


@pytest.mark.parametrize(
    ("name", "judged", "distilled", "learned", "shows"),
    [
        ("none", False, False, False, ""),
        ("oracle", False, False, False, "They open with"),
        ("bank", True, True, True, "opens with"),
        ("placebo", True, True, True, "neutral passage"),
        ("shuffled", True, True, True, "opens with"),
        ("success_only", True, True, True, f"opens with {GUESS}"),
        ("raw", True, False, True, "Judged: failure"),
        ("true_verdicts", False, True, True, "opens with"),
    ],
)
def test_each_control_changes_one_thing(name: str, judged: bool, distilled: bool, learned: bool, shows: str) -> None:
    watched = Watched()
    arm = played(Arm(watched.program, name))
    assert (watched.calls("label") > 0, watched.calls("memory_items") > 0, arm.learned > 0) == (
        judged,
        distilled,
        learned,
    )
    assert shows in watched.shown()
    assert bool(arm.shown) == bool(shows)
    assert ("opens with" in watched.shown()) == (learned and name != "placebo")


def test_a_placebo_tells_nothing_of_a_lesson() -> None:
    """Neither its title, nor its description, nor its content."""
    placebo = system_of("placebo", Base(scripted_program().retrieve)).retrieve
    assert placebo is not None
    with new_bank() as bank:
        bank.add("Abus quartz", "quartz 7731", "quartz keys")
        memory = placebo(lock("Abus", 4), bank)
        assert memory.items
        assert "quartz" not in memory.block


@pytest.mark.parametrize("memory", ["exprag", "memrl"])
@pytest.mark.parametrize("name", ["placebo", "shuffled"])
def test_a_control_shows_no_more_than_the_memory_that_it_stands_for(memory: str, name: str) -> None:
    whole = program(memory, config=ProgramConfig(retrieve=RetrieveConfig(max_tokens=120)))
    with new_bank() as bank:
        for task in many(8):
            whole(task=task, bank=bank, run_id="r")
        task = lock("Abus", 50)
        assert whole.recall(task, bank).beyond, "its cases do not fit"
        control = Arm(whole, name).equipped().recall(task, bank)
        assert control
        assert 0 < control.tokens <= 120


def test_what_goes_over_a_memory_leaves_the_rest_of_it() -> None:
    """``bank``, ``placebo`` and ``true_verdicts`` of a program with a memory of its own store what that stores."""
    for name in ("bank", "placebo", "true_verdicts"):
        watched = Watched("exprag")
        played(Arm(watched.program, name))
        assert watched.calls("memory_items") == 0
        assert ("Judged:" in watched.shown()) == (name != "placebo")
        assert (watched.calls("label") == 0) == (name == "true_verdicts")
    watched = Watched("exprag")
    played(Arm(watched.program, "none"))
    assert "Judged:" not in watched.shown()
    assert {prompt.role for prompt in watched.asked} == {"agent"}


def test_another_memory_takes_the_place_of_the_programs_own() -> None:
    """Also its curators, its retrieval, and that it asks no judge."""
    silent = replace(
        system_of("exprag", Base(scripted_program().retrieve)),
        retrieve=lambda task, bank, own_lessons=False: Memory(),
        curate=[lambda curated, task, bank: pytest.fail("the first memory is not in use")],
        signal="none",
        repeats_tasks=True,
        name="",
    )
    teaches = replace(system_of("raw", Base(scripted_program().retrieve)), retrieve=None)
    made = ReasoningBank(memory=silent).use_memory(teaches)
    made.backbones, made.environments = Watched().program.backbones, Watched().program.environments
    with new_bank() as bank:
        for task in many(3):
            done = made(task=task, bank=bank, run_id="r")
        assert done.verdict.label != "unknown"
        assert made.recall(lock("Abus", 9), bank)
        assert not made.recall(lock("Abus", 0, tells=True), bank).items[2:]
    assert not made.repeats_tasks


def test_a_memory_without_feedback_asks_no_judge_whatever_the_signal() -> None:
    made = replace(system_of("exprag", Base(scripted_program().retrieve)), signal="none")
    for signal in (None, "judge", "outcome"):
        watched = Watched(made)
        report = played(Arm(watched.program, signal=signal))  # type: ignore[arg-type]
        assert (watched.calls("label"), report.signal) == (0, "none")


@pytest.mark.parametrize("k", [1, 2])
def test_the_true_outcome_takes_the_place_of_a_wrong_judge(k: int) -> None:
    for signal, agreement in (("judge", None), ("outcome", 1.0)):
        watched = Watched("exprag", verdict="success")
        made: Any = watched.program if k == 1 else MaTTS(watched.program, k=k)
        report = played(Arm(made, signal=signal), locks(6))  # type: ignore[arg-type]
        assert report.signal == signal
        assert (watched.calls("label") == 0) == (signal == "outcome")
        assert agreement is None or report.judge_agreement == agreement


def test_a_control_that_needs_lessons_is_refused_over_cases() -> None:
    with pytest.raises(InputError, match=r"success_only.*needs the step Retrieve.*Recall"):
        played(Arm(program("exprag"), "success_only"))


@pytest.mark.parametrize("name", CONTROLS)
def test_a_program_may_have_a_control_as_its_memory(name: str) -> None:
    with new_bank() as bank:
        made = program(name)
        for task in many(4):
            made(task=task, bank=bank, run_id="r")
        stores = name not in ("none", "oracle")
        assert bool(bank.items()) == stores
        assert bank.learned("r") == {task.id for task in many(4)}


def test_the_system_of_a_program_stays_with_it() -> None:
    """In copies, and in programs that scale it."""
    made = program("exprag")
    for each in (made.deepcopy(), MaTTS(made, k=2)):
        assert Arm(each).own == "exprag"
        assert Arm(each, "memrl").own == ""
    mine = replace(system_of("exprag", Base(made.retrieve)), name="", source="Ann's notes")
    assert Arm(ReasoningBank(memory=mine), "placebo").own == "Ann's notes"


def test_a_report_names_the_memory_that_the_program_has() -> None:
    arms = {"none": Arm(scripted_program(), "none"), "bank": Arm(Watched("memrl").program)}
    report = evaluate(arms, locks(3), orders=1, embedder=HashEmbedder())
    assert (report.arms["bank"].memory, report.arms["bank"].own, report.arms["none"].own) == ("bank", "memrl", "")
    for text in (report.to_markdown(), report.to_html()):
        assert "own memory, memrl" in text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"memory": "exprag"}, {"memory": "exprecent"}),
        ({"memory": "bank"}, {"memory": "bank+prune"}),
        ({"memory": "bank"}, {"memory": "bank", "signal": "outcome"}),
        ({"program": "exprag"}, {"program": "exprecent"}),
    ],
)
def test_another_memory_or_signal_is_another_evaluation(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    def asked(given: dict[str, Any]) -> Any:
        made = {"a": Arm(**{**given, "program": Watched(given.get("program")).program})}
        return evaluate({**made, "b": Arm(scripted_program(), "none")}, locks(2), **options)

    options: dict[str, Any] = {"orders": 1, "embedder": HashEmbedder(), "folder": tmp_path}
    report = asked(first)
    assert asked(first) == report
    with pytest.raises(InputError, match="another evaluation"):
        asked(second)


def test_a_row_holds_what_a_report_needs(tmp_path: Path) -> None:
    arms = {"none": Arm(scripted_program(), "none"), "bank": Arm(scripted_program(), signal="outcome")}
    report = evaluate(arms, locks(4), orders=1, embedder=HashEmbedder(), folder=tmp_path)
    rows = [row for row in read_records(tmp_path) if row.arm == "bank"]
    assert {row.signal for row in rows} == {"outcome"}
    assert [bool(row.tokens_shown) for row in rows] == [bool(row.shown) for row in rows]
    assert report.arms["bank"].tokens_shown == sum(row.tokens_shown or 0 for row in rows) / 4


def verdict_of(task: Task, trajectory: Any) -> Verdict:
    return Verdict(label="success")


def test_the_bank_is_the_program_as_it_is() -> None:
    plain = scripted_program()
    plain.judge = verdict_of
    equipped = Arm(plain).equipped()
    assert (equipped.retrieve, equipped.judge, equipped.distill) == (plain.retrieve, verdict_of, plain.distill)
    with MemoryBank.open(None, scope="x", embedder=HashEmbedder()) as bank:
        assert equipped(task=lock("Abus", 1, tells=True), bank=bank).verdict.label == "success"


def test_a_placebo_is_as_long_as_what_it_stands_for_and_stands_where_that_stands() -> None:
    with new_bank() as bank:
        usual, neutral = program("ace"), program("ace").use_memory(system_of("placebo", Base(program("ace").retrieve)))
        for task in many(2):
            usual(task=task, bank=bank, run_id="r")
        real, shown = (each.recall(lock("Abus", 50), bank) for each in (usual, neutral))
        assert real.position == shown.position == "system"
        assert abs(len(real.block) - len(shown.block)) <= 2
        assert "opens with" in real.block
        assert "opens with" not in shown.block
