"""Programs x backbones: who is better where, and what is to be compiled again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.compile.matrix import SEED, Cell, Matrix, matrix, state_for, state_path
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.scores import Estimate, estimate
from rb_dspy.compile.state import save_program
from rb_dspy.errors import InputError
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.stream import TaskStream
from rb_dspy.testing import Prompt, Reply, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.school import Hushed, hushed, program
from tests.compile.teacher import BACKWARDS, EVIDENCE, locks, pupil
from tests.worlds import answers, lock


def stubborn(prompt: Prompt) -> Reply:
    """A pupil who does not listen, and on long instructions types nothing that opens."""
    if "action" in prompt.wants and BACKWARDS in prompt.system:
        return {"thought": "I was told so.", "action": "0000"}
    return pupil(prompt)


def saved(folder: Path, name: str, **instructions: str) -> Path:
    made = program()
    for step, sentence in instructions.items():
        predict = getattr(made, step).predict
        predict.signature = predict.signature.with_instructions(f"{predict.signature.instructions}\n\n{sentence}")
    path = state_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_program(made, path)
    return path


HELD_OUT = TaskStream("held-out", tuple(locks(5, 4, first=3)))


def test_a_program_is_compared_with_the_seed_program_on_every_backbone(tmp_path: Path) -> None:
    path = saved(tmp_path, "backwards", act=BACKWARDS, judge=EVIDENCE)
    told: list[Cell] = []

    found = matrix(
        program(), {"backwards": path}, {"willing": scripted_lm(pupil), "stubborn": Backbones(scripted_lm(stubborn))},
        HELD_OUT, embedder=HashEmbedder(), on_cell=told.append,
    )  # fmt: skip

    assert [(cell.backbone, cell.program) for cell in found.cells] == [
        ("willing", SEED), ("willing", "backwards"), ("stubborn", SEED), ("stubborn", "backwards"),
    ]  # fmt: skip
    assert told == found.cells
    willing, stubborn_one = found.cell("backwards", "willing"), found.cell("backwards", "stubborn")
    assert willing.success is not None
    assert willing.success.mean == 1.0
    assert willing.difference is not None
    assert willing.difference.low > 0
    assert not willing.recompile
    assert stubborn_one.success is not None
    assert stubborn_one.success.mean == 0.0
    assert stubborn_one.recompile
    assert found.to_recompile() == [("backwards", "stubborn")]
    assert willing.judge_agreement == 1.0
    seed = found.cell(SEED, "willing")
    assert seed.judge_agreement is not None
    assert seed.judge_agreement < 1.0
    assert willing.judge_base_rate == 1.0, "all are solved, so that says nothing"
    assert willing.judge_balanced is None
    assert seed.difference is None
    assert seed.tokens > 0
    assert seed.seconds > 0
    assert found.stream == HELD_OUT.digest


@pytest.mark.stress
def test_each_backbone_gets_its_own_state_where_there_is_one(tmp_path: Path) -> None:
    saved(tmp_path, "mine", act="Nothing new.")
    save_program(program(), state_path(tmp_path, "mine", "large"))
    own = program()
    own.act.predict.signature = own.act.predict.signature.with_instructions(
        f"{own.act.predict.signature.instructions}\n\n{BACKWARDS}"
    )
    save_program(own, state_path(tmp_path, "mine", "small"))
    found = matrix(
        program(), {"mine": tmp_path / "mine"}, {"small": scripted_lm(pupil), "other": scripted_lm(pupil)},
        HELD_OUT, embedder=HashEmbedder(),
    )  # fmt: skip
    small, other = found.cell("mine", "small"), found.cell("mine", "other")
    assert small.success is not None
    assert small.success.mean == 1.0
    assert other.success is not None
    assert other.success.mean < 1.0
    assert state_for(tmp_path / "mine", "large").name == "large.json"
    assert state_for(tmp_path / "mine", "tiny").name == "default.json"
    (tmp_path / "mine" / "default.json").unlink()
    with pytest.raises(InputError, match=r"holds neither tiny\.json nor default\.json"):
        state_for(tmp_path / "mine", "tiny")


def test_what_breaks_one_cell_stands_in_it(tmp_path: Path) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    found = matrix(
        program(),
        {"lost": tmp_path / "lost.json"},
        {"up": scripted_lm(pupil), "down": scripted_lm(down)},
        TaskStream("few", tuple(locks(1, 2))),
        embedder=HashEmbedder(),
    )
    assert "no such file" in found.cell("lost", "up").error
    assert "bad key" in found.cell(SEED, "down").error
    assert found.cell(SEED, "up").error == ""
    assert found.cell(SEED, "up").success is not None
    assert found.to_recompile() == [("lost", "up")]
    with pytest.raises(InputError, match="no program 'x'"):
        found.cell("x", "up")


NINE = TaskStream("nine", (*(hushed(lock("Abus", n), "wins") for n in range(8)), hushed(lock("Abus", 8))))
"""Locks: of eight it is known where they are opened, of the last nobody ever knows it."""


def opener(opened: int) -> Any:
    """Who opens the first ``opened`` locks; told to work backwards, one more."""

    def script(prompt: Prompt) -> Reply:
        if "action" not in prompt.wants:
            return answers(prompt)
        known = opened + (BACKWARDS in prompt.system)
        return {"thought": "So.", "action": "4711" if any(f"serial {n}" in prompt.text for n in range(known)) else "0"}

    return scripted_lm(script)


@pytest.mark.stress
def test_all_cells_are_rated_on_the_same_tasks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An environment that tells of wins only: a program gains nothing by what it does not tell."""
    made = ReasoningBank(environments=Hushed.of)
    path = tmp_path / "better.json"
    better = ReasoningBank()
    predict = better.act.predict
    predict.signature = predict.signature.with_instructions(f"{predict.signature.instructions}\n\n{BACKWARDS}")
    save_program(better, path)
    lms = {"none": opener(0), "seven": opener(7), "one": opener(1)}
    told: list[Any] = []
    found = matrix(
        made, {"better": path}, lms, NINE, embedder=HashEmbedder(),
        on_start=lambda *names: told.append(names), on_cell=told.append,
    )  # fmt: skip
    rates = {(cell.backbone, cell.program): cell.success for cell in found.cells}
    assert {names: rate and (rate.mean, rate.tasks) for names, rate in rates.items()} == {
        ("none", SEED): (0.0, 8),
        ("none", "better"): (1 / 8, 8),
        ("seven", SEED): (7 / 8, 8),
        ("seven", "better"): (1.0, 8),
        ("one", SEED): (1 / 8, 8),
        ("one", "better"): (2 / 8, 8),
    }
    differences = [cell.difference for cell in found.cells if cell.difference is not None]
    assert [(difference.mean, difference.tasks) for difference in differences] == [(1 / 8, 8)] * 3
    assert found.left_out == 1
    assert "nine: 1 of 9 tasks have no ground truth, and do not count" in caplog.text
    assert told == [*((cell.program, cell.backbone) for cell in found.cells), *found.cells]


def test_a_backbone_that_cannot_be_used_is_found_before_anything_is_run_and_told_once(tmp_path: Path) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    def spent(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            raise lm15.BillingError("no credit")
        return pupil(prompt)

    def busy(prompt: Prompt) -> Reply:
        if not prompt.wants:
            raise lm15.RateLimitError("not now")
        return pupil(prompt)

    told: list[tuple[str, ...]] = []
    lms = {"up": scripted_lm(pupil), "spent": scripted_lm(spent), "busy": scripted_lm(busy), "down": scripted_lm(down)}
    path = tmp_path / "same.json"
    save_program(program(), path)
    found = matrix(
        program(), {"same": path}, lms, TaskStream("five", tuple(locks(1, 5))), embedder=HashEmbedder(),
        on_unusable=lambda *given: told.append(given), on_start=lambda *given: told.append(given),
    )  # fmt: skip
    (first, why), *rest = told
    assert (first, "the provider refused the key" in why, "bad key" in why) == ("down", True, True)
    assert [given[:1] if "no credit" in given[1] else given for given in rest] == [
        (SEED, "up"), ("same", "up"), (SEED, "spent"), ("spent",), (SEED, "busy"), ("same", "busy"),
    ]  # fmt: skip
    assert len(lms["down"].engine.prompts) == 1
    assert found.unusable() == ["spent", "down"]
    assert [(cell.program, cell.backbone) for cell in found.cells if cell.unusable] == [
        (SEED, "spent"), ("same", "spent"), (SEED, "down"), ("same", "down"),
    ]  # fmt: skip
    assert {cell.error for cell in found.cells if cell.backbone == "down"} == {why}
    assert not any(cell.error for cell in found.cells if cell.backbone in ("up", "busy"))
    assert found.to_recompile() == [("same", "up"), ("same", "busy")]


def test_what_is_no_backbone_stands_in_its_cells() -> None:
    strange: Any = 7
    found = matrix(
        ReasoningBank(environments=Hushed.of), {}, {"odd": strange, "up": opener(1)}, NINE, embedder=HashEmbedder()
    )
    assert found.unusable() == ["odd"]
    assert "got int" in found.cell(SEED, "odd").error


@pytest.mark.parametrize(
    ("mean", "low", "high", "tasks", "again", "too_few"),
    [
        (0.33, -0.05, 0.63, 12, False, True),
        (0.0, -0.9, 0.9, 4, False, True),
        (0.5, 0.1, 0.8, 12, False, False),
        (0.0, -0.2, 0.2, 12, True, False),
        (-0.5, -0.8, -0.1, 12, True, False),
    ],
)
def test_what_too_few_tasks_leave_open_is_not_to_be_compiled_again(
    mean: float, low: float, high: float, tasks: int, again: bool, too_few: bool
) -> None:
    difference = Estimate(mean=mean, low=low, high=high, tasks=tasks)
    cell = Cell(program="mine", backbone="up", success=difference, difference=difference)
    assert (cell.recompile, cell.too_few) == (again, too_few)


def test_what_was_done_before_an_interrupt_is_told(tmp_path: Path) -> None:
    def stopped(prompt: Prompt) -> Reply:
        if "answer" in prompt.wants:  # asked whether it answers at all
            return {"answer": "blue"}
        raise KeyboardInterrupt

    told: list[Cell] = []
    lms = {"up": opener(2), "off": scripted_lm(stopped)}
    with pytest.raises(KeyboardInterrupt):
        matrix(ReasoningBank(environments=Hushed.of), {}, lms, NINE, embedder=HashEmbedder(), on_cell=told.append)
    assert [(cell.backbone, cell.success and cell.success.mean) for cell in told] == [("up", 1.0)]


def test_what_cannot_be_scored_and_what_is_no_bank_is_refused_before_anything_is_asked() -> None:
    lm = opener(1)
    open_ones = TaskStream("open", (Task(id="a", instruction="Why?"), Task(id="b", instruction="Who?")))
    with pytest.raises(InputError, match="open: none of its 2 tasks has a known answer"):
        matrix(ReasoningBank(), {}, {"one": lm}, open_ones, embedder=HashEmbedder())
    path: Any = "x.sqlite"
    with pytest.raises(InputError, match="got str for bank"):
        matrix(program(), {}, {"one": lm}, HELD_OUT, bank=path)
    assert lm.engine.prompts == []


def test_without_backbones_there_is_no_matrix() -> None:
    with pytest.raises(InputError, match="no backbones"):
        matrix(program(), {}, {}, HELD_OUT)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "c:d", "..", 'q"'])
def test_names_that_make_no_path_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be that of a file"):
        state_path(tmp_path, name)


def test_the_callers_program_keeps_its_prompts_and_backbones(tmp_path: Path) -> None:
    made: Any = program()
    own = made.backbones
    path = saved(tmp_path, "b", act=BACKWARDS)
    few = TaskStream("few", tuple(locks(1, 2)))
    matrix(made, {"b": path}, {"x": scripted_lm(pupil)}, few, embedder=HashEmbedder(), orders=3, threads=2)
    assert made.backbones is own
    assert BACKWARDS not in made.act.predict.signature.instructions


def test_nobody_knows_what_is_worth_recompiling_where_only_the_seed_program_broke() -> None:
    solved = estimate(Ratings({"task": [1.0]}))
    assert not Cell(program="mine", backbone="up", success=solved).recompile
    assert Cell(program="mine", backbone="up", error="down").recompile


def test_a_program_cannot_have_the_name_of_the_one_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a program called 'seed'"):
        matrix(program(), {SEED: tmp_path / "any.json"}, {"up": scripted_lm(pupil)}, HELD_OUT)


@pytest.mark.parametrize(("balanced", "low", "high", "again"), [
    (1.0, -0.2, 0.2, False), (0.55, -0.2, 0.2, False), (0.54, -0.2, 0.2, True), (None, -0.2, 0.2, True),
    (1.0, -0.4, -0.1, True),
])  # fmt: skip
def test_a_program_that_judges_better_and_solves_no_less_is_not_to_be_compiled_again(
    balanced: float | None, low: float, high: float, again: bool
) -> None:
    difference = Estimate(mean=(low + high) / 2, low=low, high=high, tasks=20)
    cells = [
        Cell(program=SEED, backbone="up", judge_agreement=0.2, judge_balanced=0.5),
        Cell(program="judge", backbone="up", judge_agreement=0.9, judge_balanced=balanced, difference=difference),
    ]
    found = Matrix(stream="x", orders=1, cells=cells)
    assert cells[1].recompile
    assert found.to_recompile() == ([("judge", "up")] if again else [])
