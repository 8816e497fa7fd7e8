"""A program over a stream as optimizers call it: the same for the same stream, whoever calls it and how often."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import Backbones, MaTTS, MemoryBank, ReasoningBank, RunReport, StreamProgram, Task, TaskStream, run_stream
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.stream import stream_example
from rb_dspy.testing import HashEmbedder, Prompt, Reply, hall, lock, locksmith, scripted_lm, scripted_program


def halls(maker: str, right: str, count: int = 3) -> TaskStream:
    return TaskStream(maker, [hall(maker, number, right) for number in range(count)])


def scaled() -> MaTTS:
    return MaTTS(scripted_program(locksmith), k=3)


def simple(script: Any = locksmith) -> ReasoningBank:
    return scripted_program(script)


def whole(program: Any, bank: MemoryBank | None = None) -> StreamProgram:
    return StreamProgram(program, bank, embedder=HashEmbedder())


def facts(report: RunReport) -> list[Any]:
    """What a run did, without times."""
    return [
        (
            result.task.id,
            result.outcomes,
            result.prediction.verdict,
            [item.title for item in result.prediction.memory.items],
            result.prediction.memory_items,
            [[step.action for step in rollout.steps] for rollout in result.rollouts],
        )
        for result in report.results
        if result.prediction is not None
    ]


def test_the_score_is_what_was_solved_and_lessons_count_within_the_stream() -> None:
    done = whole(scaled())(stream=halls("Elm", "yellow"))
    assert [result.outcomes[0].success for result in done.report.results] == [False, True, True]
    assert done.score == 1.0, "the selector finds the rollout that worked in the first task"
    one = TaskStream("one", [lock("Abus", 0, code="0000"), lock("Abus", 1), lock("Yale", 2), lock("Yale", 3)])
    assert whole(simple())(stream=one).score == 0.25


def test_every_call_starts_anew_and_so_does_a_copy(bank: MemoryBank) -> None:
    program, stream = whole(scaled(), bank), halls("Elm", "yellow", 2)
    first = program(stream=stream).report
    assert not first.results[0].prediction.memory.items
    for again in (program, copy.deepcopy(program), program.deepcopy()):
        assert facts(again(stream=stream).report) == facts(first)


@pytest.mark.parametrize("in_file", [False, True])
def test_a_bank_is_used_and_never_written(tmp_path: Path, in_file: bool) -> None:
    url = tmp_path / "bank.sqlite" if in_file else None
    with MemoryBank.open(url, scope="test", embedder=HashEmbedder()) as bank:
        run_stream(scaled(), halls("Elm", "yellow", 1), bank)
        before = bank.experiences(), bank.items()
        later = halls("Elm", "yellow", 3)[1:]
        report = whole(scaled(), bank)(stream=later).report
        assert report.results[0].prediction.memory.items == tuple(before[1])
        assert ((bank.experiences(), bank.items()), bank.pending()) == (before, [])


def test_threads_give_what_one_gives(bank: MemoryBank) -> None:
    examples = [stream_example(halls(maker, right, 2)) for maker, right in (("Elm", "yellow"), ("Oak", "blue"))]
    program = whole(scaled(), bank)
    alone = [facts(program(**example.inputs()).report) for example in examples] * 2

    def score(gold: Any, pred: Any, trace: Any = None) -> float:
        return float(pred.score)

    done = dspy.Evaluate(devset=examples * 2, metric=score, num_threads=4, display_progress=False)(program)
    assert [facts(prediction.report) for _, prediction, _ in done.results] == alone
    assert len(bank) == 0


@pytest.mark.parametrize("output", ["action", "label"])
def test_tasks_that_fail_count_as_not_solved_and_never_end_the_stream(output: str) -> None:
    def script(prompt: Prompt) -> Reply:
        if "Abus" in prompt.text and output in prompt.wants:
            raise lm15.ServerError("overloaded")
        return locksmith(prompt)

    stream = TaskStream("s", [*(lock("Abus", n) for n in range(5)), lock("Yale", 0, code="0000")])
    done = whole(simple(script))(stream=stream)
    assert ["overloaded" in result.error for result in done.report.results] == [True] * 5 + [False]
    assert done.score == 1 / 6


def test_tasks_without_ground_truth_do_not_count() -> None:
    asked = [Task(id=f"q/{number}", instruction=f"What is beauty, part {number}?") for number in range(3)]
    known = Task(id="known", instruction="Type four zeros.", env_args={"answer": "0000"})
    wrong = Task(id="wrong", instruction="Type a nine.", env_args={"answer": "9"})
    program = whole(ReasoningBank(backbones=Backbones(agent=scripted_lm(locksmith))))
    assert program(stream=TaskStream("s", [asked[0], known, asked[1], wrong])).score == 0.5
    assert program(stream=TaskStream("s", asked)).score is None


@pytest.mark.parametrize("make", [simple, scaled])
def test_the_trace_is_whole(make: Any) -> None:
    program = make()
    stream = halls("Elm", "yellow") if isinstance(program, MaTTS) else TaskStream("s", [lock("A", 0), lock("A", 1)])
    with dspy.context(trace=[]):
        whole(program)(stream=stream)
        trace = list(dspy.settings.trace)
    assert len(trace) == len(program.backbones.lm("agent").engine.prompts) > 0
    own = {id(predictor) for _, predictor in program.named_predictors()}
    assert {id(called) for called, _, _ in trace} <= own


@pytest.mark.parametrize("compiled", [False, True])
def test_predictors_have_their_names_and_the_state_holds_prompts_only(bank: MemoryBank, compiled: bool) -> None:
    inner: Any = scaled()
    inner._compiled = compiled  # as dspy's optimizers leave it
    program = whole(inner, bank)
    named = [name for name, _ in program.named_predictors()]
    assert named == [f"program.{name}" for name, _ in scaled().named_predictors()]
    assert set(program.dump_state()) == set(named)
    with pytest.raises(AttributeError, match="StreamProgram"):
        pickle.dumps(StreamProgram(ReasoningBank(), bank))


def test_an_embedder_is_never_copied() -> None:
    class Locked:
        """Like a real one, it cannot be copied."""

        id, dimension = "locked", 64

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def embed(self, texts: Sequence[str]) -> Vectors:
            with self.lock:
                return HashEmbedder().embed(texts)

    program = StreamProgram(simple(), embedder=Locked())
    assert copy.deepcopy(program)(stream=TaskStream("s", [lock("Abus", 0, code="0000")])).score == 1


def test_what_cannot_be_run_is_refused(bank: MemoryBank) -> None:
    program, stream, path = whole(simple(), bank), TaskStream("s", [lock("Abus", 0)]), "x.sqlite"
    run_stream(simple(), stream, bank, run_id="compile")
    for call in (
        lambda: StreamProgram(simple(), path),  # type: ignore[arg-type]
        lambda: program(stream=[lock("Abus", 0)]),
        lambda: program(stream=TaskStream("empty", [])),
        lambda: program(stream=stream),  # the bank has learned from it in a run of this name
    ):
        with pytest.raises(InputError):
            call()
