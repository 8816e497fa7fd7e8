"""``rb-dspy resume``: what waits in a bank is learned from, and no task is done again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dspy import lm15

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task, Trajectory, save_program
from rb_dspy.cli.main import main
from rb_dspy.matts import MaTTS
from rb_dspy.plugins import embedder
from rb_dspy.schema import Step
from rb_dspy.testing import Prompt, Reply
from tests.worlds import backbones, item


def answered(prompt: Prompt) -> Reply:
    if "label" in prompt.wants:
        return {"reasons": "Counted again.", "label": "success"}
    if "choice" in prompt.wants:
        return {"analysis": "Alike.", "choice": 1}
    if "memory_items" in prompt.wants and "attempts" in prompt:
        return {"analysis": "Hm.", "memory_items": [item("Compare counts", "Count twice, compare.")]}
    if "memory_items" in prompt.wants:
        return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}
    raise AssertionError(f"a task was done again: {prompt.wants}")


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Prompt], Reply]], None]:
    """Sets what the models of the command answer."""
    monkeypatch.chdir(tmp_path)

    def by(reply: Callable[[Prompt], Reply]) -> None:
        def from_settings(configs: object) -> Backbones:
            return backbones(reply)

        monkeypatch.setattr(Backbones, "from_settings", from_settings)

    by(answered)
    return by


def opened() -> MemoryBank:
    return MemoryBank.open("kept.sqlite", scope="desk", embedder=embedder("minilm"))


def keep(name: str, rollouts: int = 1) -> str:
    """Rollouts of a task that nobody has learned from; the id they wait under."""
    task = Task(id=name, instruction=f"How many of {name}?")
    steps = (Step(thought="I count.", action="7"),)
    made = [Trajectory(task_id=name, rollout_id=str(number), steps=steps) for number in range(rollouts)]
    with opened() as bank:
        for rollout in made:
            bank.record(task, rollout, run_id="before")
        (waiting,) = bank.pending(run_id="before", task_id=name)
        return waiting.id


def resume(*more: str) -> int:
    return main(["resume", "--bank", "kept.sqlite", "--scope", "desk", *more])


def test_what_waits_is_learned_from(play: object, capsys: pytest.CaptureFixture[str]) -> None:
    keep("one")
    keep("three", rollouts=3)
    assert resume() == 0
    printed = capsys.readouterr().out
    for text in ("one  success · 1 lesson", "Count twice", "three  success, success, success · 1 lesson", "Compare c"):
        assert text in printed
    with opened() as bank:
        assert bank.pending() == []
        assert bank.seen_tasks() == {"one", "three"}
    assert resume() == 0
    assert capsys.readouterr().out == "nothing waits to be learned from\n"


def test_only_those_that_are_named(play: object, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = keep("one"), keep("two")
    assert resume(second, "--json") == 0
    (said,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (said["id"], said["task"], said["verdicts"], said["error"]) == (second, "two", ["success"], "")
    assert [each["title"] for each in said["items"]] == ["Count twice"]
    with opened() as bank:
        assert [waiting.id for waiting in bank.pending()] == [first]
    assert resume("typo") == 2
    assert "no rollouts wait as 'typo'" in capsys.readouterr().err


def test_what_breaks_goes_on_waiting(
    play: Callable[[Callable[[Prompt], Reply]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    keep("one")
    keep("two")

    def breaks(prompt: Prompt) -> Reply:
        if "How many of one?" in prompt["task"]:
            raise lm15.InvalidRequestError("the line is dead")
        return answered(prompt)

    play(breaks)
    assert resume() == 0
    assert "the line is dead" in capsys.readouterr().out
    with opened() as bank:
        (waiting,) = bank.pending()
        assert waiting.task.id == "one"
    assert resume() == 5  # now all that waits breaks
    assert "the line is dead" in capsys.readouterr().err


def test_compiled_prompts_are_used(play: Callable[[Callable[[Prompt], Reply]], None]) -> None:
    compiled = MaTTS(ReasoningBank(), k=2)
    for name, predictor in compiled.named_predictors():
        predictor.signature = predictor.signature.with_instructions(f"As compiled for {name}.")
    save_program(compiled, "compiled.json")
    keep("one")
    keep("three", rollouts=3)
    seen = set[str]()

    def noting(prompt: Prompt) -> Reply:
        seen.update(each for each in ("judge", "distill", "contrast", "select") if f"for {each}" in prompt.text)
        return answered(prompt)

    play(noting)
    assert resume("--program", "compiled.json") == 0
    assert seen == {"judge", "distill", "contrast", "select"}


def test_an_export_says_what_it_leaves_out(play: object, capsys: pytest.CaptureFixture[str]) -> None:
    keep("one")
    keep("two")
    export = ["bank", "export", "kept.jsonl", "--bank", "kept.sqlite", "--scope", "desk"]
    assert main(export) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 experiences written to kept.jsonl left out, since nobody has learned from them" in printed
    assert "the rollouts of 2 tasks" in printed
    assert printed.endswith(" resume --bank kept.sqlite --scope desk does")
    assert main(["resume", "none", "--bank", "kept.sqlite", "--scope", "desk"]) == 2
    assert "bank pending --bank kept.sqlite --scope desk` lists those that do" in capsys.readouterr().err
    assert main([*export, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pending"] == 2
    assert resume() == 0
    capsys.readouterr()
    assert main(export) == 0
    assert capsys.readouterr().out == "2 experiences written to kept.jsonl\n"


def test_a_text_that_is_run_again_is_shown_what_it_taught(
    play: Callable[[Callable[[Prompt], Reply]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    memories = list[str]()

    def acts(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            memories.append(prompt["memory"])
            return {"thought": "I count.", "action": "7"}
        return answered(prompt)

    play(acts)
    for _ in range(2):
        assert (
            main(["run", "--task", "How many of one?", "--bank", "kept.sqlite", "--scope", "desk", "--no-track"]) == 0
        )
    assert ["Count twice" in memory for memory in memories] == [False, True]


def test_there_must_be_a_bank(play: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert resume() == 6
    assert "no bank there" in capsys.readouterr().err
    assert not Path("kept.sqlite").exists()
