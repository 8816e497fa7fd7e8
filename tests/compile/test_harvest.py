"""Labelled examples from runs: what teaches a step, and what does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import MemoryBank, ReasoningBank, Task, TaskStream
from rb_dspy.compile.examples import INPUTS
from rb_dspy.compile.harvest import Harvest, harvest, harvest_report
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.stages import stage_module
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.stream import RunReport, run_stream
from rb_dspy.stream.program import StreamProgram
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply
from tests.worlds import Doors, answers, backbones, hall, lock, openers

NOW = re.compile(r'"version": 3')


def simple(script: Any = answers) -> ReasoningBank:
    return ReasoningBank(backbones=backbones(script), environments=Lock.make)


def scaled(script: Any = openers) -> MaTTS:
    return MaTTS(ReasoningBank(backbones=backbones(script), environments=Doors.make), k=3)


def halls(count: int = 3, maker: str = "Elm", right: str = "yellow") -> TaskStream:
    return TaskStream(maker, tuple(hall(maker, number, right) for number in range(count)))


def locks(*codes: str, maker: str = "Abus") -> TaskStream:
    return TaskStream(maker, tuple(lock(maker, number, code) for number, code in enumerate(codes)))


def ran(program: Any, stream: TaskStream) -> RunReport:
    report: RunReport = StreamProgram(program, embedder=HashEmbedder())(stream=stream).report
    return report


def gathered(program: Any, *streams: TaskStream, **given: Any) -> Harvest:
    return harvest(program, streams, embedder=HashEmbedder(), **given)


def test_the_judge_learns_from_ground_truth_and_no_label_is_left_out_for_the_others_sake() -> None:
    found = gathered(simple(), locks("0000", "0000", "0000", "4711"))
    examples = found.examples("judge")
    assert [example.success for example in examples] == [True, True, True, False]
    assert [example.task.id for example in examples] == [f"lock/Abus/{number}" for number in range(4)]
    assert found.left_out["judge"] == {}
    assert "judge: 4 examples\n" in found.summary()
    alike = gathered(simple(), locks("0000", "0000"))
    assert [example.success for example in alike.examples("judge")] == [True, True]


def test_a_wrong_verdict_does_not_become_the_label() -> None:
    def gullible(prompt: Prompt) -> Reply:
        return {"reasons": "Sure.", "label": "success"} if "label" in prompt.wants else answers(prompt)

    found = gathered(simple(gullible), locks("4711", "4711"))
    assert [example.success for example in found.examples("judge")] == [False, False]


def test_the_decisive_step_is_known_where_rollouts_part() -> None:
    found = gathered(scaled(), halls(1))
    steps = {tuple(step.action for step in e.trajectory.steps): e.decisive for e in found.examples("judge")}
    assert steps
    assert set(steps.values()) == {2}
    assert [e.decisive for e in gathered(simple(), locks("4711")).examples("judge")] == [None]


def test_the_selector_learns_only_where_rollouts_differ_in_truth() -> None:
    found = gathered(scaled(), halls(3))
    (example,) = found.examples("select")
    assert example.task.id == "hall/Elm/0"
    assert sorted(example.rewards) == [0, 0, 1]
    assert len(example.trajectories) == len(example.verdicts) == 3
    assert found.left_out["select"] == {"all rollouts got the same reward": 2}
    assert "fewer than two rollouts" in gathered(simple(), locks("1")).summary()


def test_only_those_who_act_are_given_ground_truth() -> None:
    found = gathered(scaled(), halls(3))
    for stage in ("judge", "select"):
        examples = found.examples(stage)  # type: ignore[arg-type]
        assert examples
        assert all(example.task.env_args == {} for example in examples)
    assert all(example.task.env_args for example in found.examples("agent"))


def test_what_broke_or_has_no_ground_truth_teaches_nothing(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "serial 1" in prompt.text:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    report = ran(simple(script), locks("0000", "0000", "4711"))
    assert [example.task.id for example in harvest_report(report).examples("agent")] == ["lock/Abus/0", "lock/Abus/2"]
    program = ReasoningBank(backbones=backbones())
    plain = Task(id="plain", instruction="Say something.")  # an open question: nobody knows the answer
    done = run_stream(program, [plain], bank, run_id="r")
    found = harvest_report(done)
    assert all(not found.examples(stage) for stage in INPUTS)
    assert all(reasons == {"no ground truth": 1} for reasons in found.left_out.values())


def test_the_same_work_is_an_example_once() -> None:
    found = gathered(simple(), locks("4711"), locks("4711"))
    assert len(found.examples("judge")) == 1
    assert found.left_out["judge"] == {"the same was done before": 1}


def test_every_example_runs_in_its_stage_and_is_rated() -> None:
    program = scaled()
    found = gathered(program, halls(3))
    for stage in INPUTS:
        module, metric = stage_module(program, stage), metric_for(stage, program)
        examples = found.examples(stage)
        assert examples
        assert set(examples[0].inputs().toDict()) == set(INPUTS[stage])
        for example in examples:
            assert isinstance(metric(example, module(**example.inputs())), float)
    judged = [
        metric_for("judge", program)(e, stage_module(program, "judge")(**e.inputs())) for e in found.examples("judge")
    ]
    assert set(judged) == {1.0}
    (choice,) = found.examples("select")
    assert metric_for("select", program)(choice, stage_module(program, "select")(**choice.inputs())) == 1.0


def test_a_harvest_survives_the_way_through_a_file(tmp_path: Path) -> None:
    found = gathered(scaled(), halls(3))
    found.to_jsonl(tmp_path / "harvest.jsonl")
    read = Harvest.from_jsonl(tmp_path / "harvest.jsonl")
    assert read == found
    assert read.summary() == found.summary()
    for stage in INPUTS:
        pairs = zip(read.examples(stage), found.examples(stage), strict=True)
        assert all(one.inputs().toDict() == other.inputs().toDict() for one, other in pairs)
    memories = [example.memory for example in read.examples("agent")]
    assert any(memory.items for memory in memories)
    assert [path.name for path in tmp_path.iterdir()] == ["harvest.jsonl"]


def test_all_takes_streams_not_examples() -> None:
    with pytest.raises(InputError, match="'all' takes streams"):
        Harvest().examples("all")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: [], "empty"),
        (lambda lines: lines[1:], ":1: not a rb_dspy harvest"),
        (lambda lines: [NOW.sub('"version": 9', lines[0]), *lines[1:]], ":1: version 9 of the format, and this"),
        (lambda lines: [NOW.sub('"version": 9', lines[0]), *lines[1:]], "install a newer rb_dspy"),
        (lambda lines: [NOW.sub('"version": 2', lines[0]), *lines[1:]], "harvest again"),
        (lambda lines: ['{"format": "rb_dspy harvest", "version": 3}', *lines[1:]], ":1: damaged"),
        (lambda lines: [*lines[:2], lines[2][:-9]], ":3:"),
        (lambda lines: [*lines[:2], "[" * 100_000], ":3:"),
        (lambda lines: ["[" * 100_000], ":1:"),
        (lambda lines: [lines[0], "[1]"], ":2:"),
        (lambda lines: [lines[0], '{"stage": "act"}'], ":2: unknown stage 'act'; known: judge"),
        (lambda lines: [lines[0], '{"stage": "judge"}'], ":2: an example for 'judge' lacks 'task'"),
        (
            lambda lines: [lines[0], lines[1].replace('"instruction"', '"instruktion"')],
            ":2: an example for 'judge': 'task'",
        ),
    ],
)
def test_files_that_are_not_whole_are_named_with_their_line(tmp_path: Path, spoil: Any, message: str) -> None:
    file = tmp_path / "harvest.jsonl"
    gathered(simple(), locks("4711", "0000")).to_jsonl(file)
    file.write_text("\n".join(spoil(file.read_text().splitlines())))
    with pytest.raises(InputError) as caught:
        Harvest.from_jsonl(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        Harvest.from_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "raw.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"raw\.jsonl"):
        Harvest.from_jsonl(tmp_path / "raw.jsonl")
    with pytest.raises(InputError, match="no such folder"):
        Harvest().to_jsonl(tmp_path / "nowhere" / "harvest.jsonl")
    odd = TaskStream("odd", (Task(id="o", instruction="Open it.", env_args={"code": "\ud800"}),))
    gathered(simple(), odd).to_jsonl(tmp_path / "odd.jsonl")
    assert json.loads((tmp_path / "odd.jsonl").read_text().splitlines()[-1])["task"]["env_args"] == {"code": "\ud800"}


@pytest.mark.parametrize("scale", [False, True])
def test_a_run_that_learned_nothing_teaches_what_needs_no_verdict(bank: MemoryBank, scale: bool) -> None:
    alone = ReasoningBank(backbones=backbones(answers), environments=Lock.make)
    run = MaTTS(alone, k=2) if scale else alone
    found = harvest_report(run_stream(run, [lock("Abus", n) for n in range(3)], bank, run_id="r", learn=False))
    assert len(found.examples("judge")) > 0
    assert len(found.examples("agent")) == 3
