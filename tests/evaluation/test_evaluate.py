"""Whole evaluations in a scripted world: what they find, what they cost, and what happens when something breaks."""

from __future__ import annotations

import itertools
import random
import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import (
    Backbones,
    MaTTS,
    MemoryBank,
    MemoryDraft,
    Outcome,
    ProgramConfig,
    ReasoningBank,
    RetrieveConfig,
    Task,
    TaskStream,
    evaluate,
)
from rb_dspy.errors import BackboneError, InfrastructureError, InputError
from rb_dspy.evaluation import Arm, Progress, Report, estimate, measure, screen
from rb_dspy.evaluation.records import read_records
from rb_dspy.importers import to_trajectory
from rb_dspy.memories import Base, Retrieval, system_of
from rb_dspy.steps import Memory
from rb_dspy.testing import (
    Corridor,
    Faulty,
    HashEmbedder,
    Lock,
    Prompt,
    Reply,
    corridor,
    lock,
    locks,
    locksmith,
    scripted_lm,
    scripted_program,
    toys,
)
from rb_dspy.testing.lm import Script
from rb_dspy.testing.locks import GUESS, MAKERS, code_of

LESSONS = [
    MemoryDraft(title=f"Locks of {maker}", description="", content=f"What {maker} made opens with {code_of(maker)}.")
    for maker in MAKERS
]
EMBEDDER = HashEmbedder()


def run(arms: Any, stream: Any, **options: Any) -> Report:
    return evaluate(arms, stream, **{"embedder": EMBEDDER, **options})


def program(script: Script = locksmith, *, k: int = 6, **lm: Any) -> ReasoningBank:
    config = ProgramConfig(retrieve=RetrieveConfig(k=k, min_score=-1.0, min_share=0.0))
    return scripted_program(script, config, **lm)


def stubborn(prompt: Prompt) -> Reply:
    """An agent that reads no lessons."""
    return {"thought": "", "action": GUESS} if prompt.role == "agent" else locksmith(prompt)


def usual(number: int) -> Task:
    """A lock that opens at the first guess."""
    return lock(MAKERS[number], number, GUESS)


def without_times(report: Report) -> dict[str, Any]:
    """A report as data, without what differs from run to run."""
    data = report.model_dump()
    for arm in data["arms"].values():
        del arm["seconds"]
    return data


def memories(arm: Arm) -> list[str]:
    """What the agent of an arm was shown."""
    assert arm.program.backbones is not None
    prompts = arm.program.backbones.lm("agent").engine.prompts
    return [prompt["memory"] for prompt in prompts if "action" in prompt.wants]


def calls(program: ReasoningBank, output: str) -> int:
    """How often a role was asked, by an output field."""
    assert program.backbones is not None
    return sum(output in prompt.wants for prompt in program.backbones.lm("agent").engine.prompts)


def test_a_bank_that_helps_is_learning() -> None:
    report = run(["none", "bank", "oracle"], locks(18), program=program(), orders=6, lessons=LESSONS)
    assert report.verdict == "LEARNING"
    assert report.headroom == "yes"
    assert report.exploratory
    none, bank, oracle = (report.arms[name] for name in ("none", "bank", "oracle"))
    assert none.success is not None
    assert (none.success.mean, none.errors, none.shown, none.learned) == (pytest.approx(3 / 18), 0, None, 0)
    assert (none.repeated, bank.repeated, oracle.repeated) == (True, False, True)
    assert (none.runs, bank.runs, oracle.runs) == (18, 108, 18)
    assert (none.judge_agreement, bank.judge_agreement) == (None, 1.0)
    assert bank.curve[0] is not None
    assert bank.curve[-1] is not None
    assert bank.curve[-1] > bank.curve[0]
    assert report.lessons[0].difference > 0
    assert str(report).startswith("LEARNING: none -> bank: 17 % -> ")


def test_a_screen_refuses_a_world_in_which_lessons_change_nothing() -> None:
    report = screen(program(stubborn), locks(30), tasks=20, lessons=LESSONS, embedder=EMBEDDER)
    assert (report.headroom, report.tasks, report.orders) == ("no", 20, 1)
    assert "choose another model or stream" in report.to_markdown()
    useful = screen(program(), locks(30), tasks=12, lessons=LESSONS, embedder=EMBEDDER)
    assert (useful.headroom, useful.verdict) == ("yes", "LEARNING")


def test_perfect_lessons_are_shown_however_far_they_are_from_the_task() -> None:
    strict = program()
    strict.retrieve.config = strict.retrieve.config.model_copy(update={"min_score": 0.99})
    report = screen(strict, locks(30), tasks=12, lessons=LESSONS, embedder=EMBEDDER)
    assert (report.arms["oracle"].shown, report.headroom) == (1.0, "yes")


def test_what_the_arms_show() -> None:
    stream = locks(8)
    modes = ("none", "bank", "placebo", "shuffled", "raw", "success_only")
    arms = {name: Arm(program(k=2), name) for name in modes}
    report = run(arms, stream, orders=1)
    shown = {name: memories(arm) for name, arm in arms.items()}
    assert set(shown["none"]) == {"(no lessons yet)"}
    assert "opens with" in shown["bank"][-1]
    assert [len(text) for text in shown["placebo"]] == [len(text) for text in shown["bank"]]  # the same are retrieved
    assert "opens with" not in "".join(shown["placebo"])
    assert report.arms["placebo"].shown == report.arms["bank"].shown
    assert report.arms["placebo"].learned == report.arms["none"].runs
    assert "Judged: failure" in shown["raw"][-1]
    assert "It stays shut" in shown["raw"][-1]
    assert calls(arms["raw"].program, "memory_items") == 0  # type: ignore[arg-type]
    # only the first guess ever opens a lock, so a success teaches nothing else
    assert set(re.findall(r"opens with (\w+)", "".join(shown["success_only"]))) == {GUESS}
    assert shown["shuffled"][-1] != shown["bank"][-1]
    assert "opens with" in shown["shuffled"][-1]


def shuffled(retrieve: Any, seed: int) -> Retrieval:
    made = system_of("shuffled", Base(retrieve, seed=seed)).retrieve
    assert made is not None
    return made


def test_shuffled_lessons_are_others() -> None:
    with MemoryBank.open(None, scope="mine", embedder=EMBEDDER) as bank:
        for lesson in LESSONS:
            bank.add(lesson.title, lesson.content)
        retrieve = program(k=2).retrieve
        for task in locks(6):
            near = retrieve(task, bank)
            far = shuffled(retrieve, 0)(task, bank)
            assert len(far.items) == len(near.items) == 2
            assert not set(far.items) & set(near.items)
            assert far == shuffled(retrieve, 0)(task, bank)
        assert len({shuffled(retrieve, seed)(task, bank).items for seed in range(9)}) > 1


def test_true_verdicts_ask_no_judge() -> None:
    def wrong(prompt: Prompt) -> Reply:
        return {"reasons": "", "label": "success"} if "label" in prompt.wants else locksmith(prompt)

    arms = {"bank": Arm(program(wrong)), "true": Arm(program(wrong), "true_verdicts"), "none": Arm(program(), "none")}
    report = run(arms, locks(6), orders=2)
    assert report.arms["bank"].judge_agreement == pytest.approx(report.arms["bank"].success.mean)  # type: ignore[union-attr]
    assert report.arms["true"].judge_agreement == 1.0
    assert calls(arms["true"].program, "label") == 0  # type: ignore[arg-type]


def test_orders_are_permuted_alike_and_arms_take_turns() -> None:
    seen: list[tuple[str, int, str]] = []
    stream = locks(4)
    run(
        ["none", "bank", "raw"],
        stream,
        program=program(temperature=0.5),
        orders=3,
        seed=5,
        on_progress=lambda progress: seen.append((progress.arm, progress.order, progress.task)),
    )
    firsts = [(arm, order) for arm, order, _ in seen[::4]]
    assert firsts[:3] == [("none", 0), ("bank", 0), ("raw", 0)]
    assert firsts[3:] == [("bank", 1), ("raw", 1), ("none", 1), ("raw", 2), ("none", 2), ("bank", 2)]
    for order, expected in enumerate([stream, stream.permuted(6), stream.permuted(7)]):
        for arm in ("none", "bank", "raw"):
            assert [task for a, o, task in seen if (a, o) == (arm, order)] == [task.id for task in expected]


def test_a_cache_gives_other_orders_other_samples() -> None:
    sampled, certain = program(temperature=0.7, cache=True), program(cache=True)
    run([Arm(sampled, "none"), Arm(sampled)], locks(3), orders=3)
    run([Arm(certain, "none"), Arm(certain)], locks(3), orders=3)
    assert calls(sampled, "action") == 18
    assert calls(certain, "action") < 9


def test_jobs_change_nothing_but_time_and_a_finished_evaluation_asks_nobody(tmp_path: Path) -> None:
    alone = run(["none", "bank"], locks(6), program=program(), orders=3)
    beside = run(["none", "bank"], locks(6), program=program(), orders=3, jobs=3, folder=tmp_path)
    assert without_times(beside) == without_times(alone)
    assert len(read_records(tmp_path)) == 6 + 18
    assert Report.load(tmp_path) == beside
    files = {name: (tmp_path / name).read_bytes() for name in ("report.json", "report.md", "report.html")}
    silent = program(lambda prompt: pytest.fail("a model was asked"))
    assert run(["none", "bank"], locks(6), program=silent, orders=3, folder=tmp_path) == beside
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_a_folder_is_of_one_plan(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"arms": ["none", "bank"], "stream": locks(3), "program": program(), "orders": 2}
    run(**usual, folder=tmp_path)
    changes: list[dict[str, Any]] = [
        {"orders": 3},
        {"seed": 1},
        {"stream": locks(4)},
        {"arms": ["none", "raw"]},
        {"arms": ["bank", "none"]},
        {"baseline": "bank"},
        {"embedder": HashEmbedder(32)},
        {"program": program(temperature=0.3)},
    ]
    for change in changes:
        with pytest.raises(InputError, match=re.escape(str(tmp_path))):
            run(**{**usual, **change}, folder=tmp_path)


def test_two_evaluations_never_share_a_folder(tmp_path: Path) -> None:
    refused: list[InputError] = []

    def again(progress: Progress) -> None:
        with pytest.raises(InputError) as error:
            run(["none", "bank"], locks(2), program=program(), orders=1, folder=tmp_path)
        refused.append(error.value)

    run(["none", "bank"], locks(2), program=program(), orders=1, folder=tmp_path, on_progress=again)
    assert len(refused) == 4


def test_a_task_that_breaks_is_done_again_and_then_counts_as_failed() -> None:
    broken: Counter[str] = Counter()

    def environments(task: Task, rollout_id: str) -> Any:
        broken[task.id] += 1
        often = {"lock/Abus/0": 1, "lock/Burg/1": 9}.get(task.id, 0)
        inner = toys(task, rollout_id)
        return Faulty(inner, error=OSError("no power")) if broken[task.id] <= often else inner

    agent = program()
    agent.environments = environments
    known = lambda prompt: {"thought": "", "action": "0000"} if "action" in prompt.wants else locksmith(prompt)  # noqa: E731
    steady = program(known)
    stream = TaskStream("easy", [usual(n) for n in range(6)])
    report = run({"steady": Arm(steady, "none"), "faulty": Arm(agent)}, stream, orders=1)
    arm = report.arms["faulty"]
    assert (arm.errors, arm.retried) == (1, 1)
    comparison = report.comparisons["faulty"]
    assert (comparison.before, comparison.after) == (1.0, pytest.approx(5 / 6))
    assert (comparison.errors_before, comparison.errors_after) == (0, 1)
    assert comparison.clean is not None
    assert comparison.clean.mean == 0
    assert broken["lock/Burg/1"] == 2


def test_a_judge_that_cannot_be_parsed_costs_lessons_and_not_the_task() -> None:
    def script(prompt: Prompt) -> Reply:
        return "no idea" if "label" in prompt.wants else locksmith(prompt)

    easy = TaskStream("easy", [usual(n) for n in range(3)])
    report = run(["none", "bank"], easy, program=program(script), orders=1)
    bank = report.arms["bank"]
    assert bank.success is not None
    assert (bank.success.mean, bank.errors, bank.learned, bank.judged) == (1.0, 0, 0, 0)


@pytest.mark.parametrize("last", [13, 14], ids=["at the end", "before it"])
def test_broken_tasks_in_a_row_end_it_and_it_goes_on(tmp_path: Path, last: int) -> None:
    down = True

    def script(prompt: Prompt) -> Reply:
        if down and "Diebold" in prompt.text:
            raise OSError("the server is down")
        return locksmith(prompt)

    stream = TaskStream(
        "row", [*locks(3), *(lock("Diebold", number, code_of("Diebold"), tells=True) for number in range(10, last))]
    )
    options: dict[str, Any] = {"program": program(script), "orders": 1, "folder": tmp_path}
    with pytest.raises(InfrastructureError):
        run(["none", "bank"], stream, **options)
    down = False
    report = run(["none", "bank"], stream, **options)
    assert {arm.errors for arm in report.arms.values()} == {0}
    assert without_times(report) == without_times(run(["none", "bank"], stream, program=program(), orders=1))


def test_a_scorer_that_breaks_once_costs_no_arm_anything() -> None:
    scored: set[str] = set()

    class Flaky(Lock):
        task = ""

        def reset(self, task: Task) -> str:
            self.task = task.id
            return super().reset(task)

        def outcome(self) -> Outcome | None:
            if self.task not in scored:
                scored.add(self.task)
                raise TimeoutError("the scorer timed out")
            return super().outcome()

    flaky = program()
    flaky.environments = Flaky.make
    start = MemoryBank.open(None, scope="start", embedder=EMBEDDER)
    start.add("Pens", "A pen writes.")
    for mode, bank in (("none", None), ("bank", None), ("bank", start)):
        scored.clear()
        reports = [
            run({"arm": Arm(each, mode, bank=bank), "other": Arm(program(), "none")}, locks(8), orders=1)
            for each in (flaky, program())
        ]
        broken, whole = (report.arms["arm"] for report in reports)
        assert (broken.errors, broken.retried, broken.success, broken.learned) == (0, 8, whole.success, whole.learned)


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_of_every_task_starts_nothing_more(jobs: int) -> None:
    def fail(task: Task, rollout_id: str) -> Any:
        raise BackboneError("no key")

    asked = program(latency=0.01)
    bad = program()
    bad.environments = fail
    with pytest.raises(BackboneError):
        run({"bad": Arm(bad), "good": Arm(asked, "none")}, locks(40), orders=4, jobs=jobs)
    assert calls(asked, "action") < 40


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_starts_nothing_more(tmp_path: Path, jobs: int) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"program": program(), "orders": 2, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        run(["none", "bank"], locks(6), **options, jobs=jobs, on_progress=interrupt)
    assert 4 <= len(read_records(tmp_path)) < 4 + jobs
    assert without_times(run(["none", "bank"], locks(6), **options)) == without_times(
        run(["none", "bank"], locks(6), program=program(), orders=2)
    )


def test_tasks_without_ground_truth_do_not_count() -> None:
    def environments(task: Task, rollout_id: str) -> Any:
        inner = toys(task, rollout_id)
        if task.id == "lock/Abus/0" or unknown:
            inner.outcome = lambda: None  # type: ignore[method-assign]
        return inner

    unknown = False
    agent = program()
    agent.environments = environments
    report = run(["none", "bank"], locks(6), program=agent, orders=1)
    assert (report.tasks, report.arms["none"].runs) == (5, 5)
    unknown = True
    with pytest.raises(InputError):
        run(["none", "bank"], locks(6), program=agent, orders=8)


def test_matts_programs_are_arms() -> None:
    scaled = MaTTS(program(temperature=0.7), k=2)
    report = run(
        {
            "none": Arm(scaled, "none"),
            "bank": Arm(scaled),
            "raw": Arm(scaled, "raw"),
            "true": Arm(scaled, "true_verdicts"),
        },
        locks(3),
        orders=1,
    )
    assert {arm.errors for arm in report.arms.values()} == {0}
    assert report.arms["raw"].learned >= 3
    assert report.arms["true"].judge_agreement == 1.0
    assert not report.arms["none"].repeated


def test_every_order_starts_from_a_copy_of_the_bank(tmp_path: Path) -> None:
    with MemoryBank.open(None, scope="mine", embedder=EMBEDDER) as bank:
        for lesson in LESSONS:
            bank.add(lesson.title, lesson.content)
        arms = {"empty": Arm(program()), "full": Arm(program(), bank=bank)}
        first = run(arms, locks(6), orders=2)
        stored = run(arms, locks(6), orders=2, folder=tmp_path)
        assert len(bank) == len(LESSONS)
    assert without_times(stored) == without_times(first)
    assert first.arms["full"].success.mean > first.arms["empty"].success.mean  # type: ignore[union-attr]


def test_programs_and_models_are_arms() -> None:
    one = program()
    strong = scripted_lm(locksmith, model="scripted/strong")
    report = run({"weak": (one, Backbones(agent=scripted_lm(stubborn))), "strong": (one, strong)}, locks(8), orders=1)
    assert report.baseline == "weak"
    assert report.arms["strong"].models["agent"] == "scripted/strong"
    assert report.comparisons["strong"].difference.mean > 0


@pytest.mark.parametrize(
    ("arms", "options"),
    [
        (["none"], {}),
        ("none,bank", {}),
        (["none", "magic"], {}),
        (["bank", "bank"], {}),
        (["none", "bank"], {"program": None}),
        (["none", "bank"], {"orders": 0}),
        (["none", "bank"], {"jobs": 0}),
        (["none", "bank"], {"baseline": "raw"}),
        (["none", "oracle"], {"lessons": []}),
        (["none", "oracle"], {"lessons": "missing.jsonl"}),
        (["none", "bank"], {"stream": []}),
        ([object(), "none"], {}),
    ],
)
def test_arguments_that_cannot_be_used(arms: Any, options: dict[str, Any]) -> None:
    options = {"stream": locks(2), "program": program(lambda prompt: pytest.fail("a model was asked")), **options}
    with pytest.raises(InputError):
        run(arms, **options)


def test_lessons_from_a_file_and_from_the_family(tmp_path: Path) -> None:
    file = tmp_path / "lessons.jsonl"
    file.write_text("\n".join(lesson.model_dump_json() for lesson in LESSONS))
    assert screen(program(), locks(6), lessons=file, embedder=EMBEDDER).arms["oracle"].shown == 1.0
    file.write_text('{"title": "x"}')
    with pytest.raises(InputError, match=r"lessons\.jsonl:1"):
        screen(program(), locks(6), lessons=file, embedder=EMBEDDER)
    tasks = TaskStream.named("directory", n=4)
    plain = ReasoningBank(backbones=Backbones(agent=scripted_lm(stubborn)))
    report = screen(plain, tasks, embedder=EMBEDDER)
    assert report.arms["oracle"].runs == 4


def test_progress_counts_and_says_nothing_of_success(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(["none", "bank"], locks(3), program=program(), orders=2, jobs=2, on_progress=seen.append)
    assert [progress.done for progress in seen] == list(range(1, 10))
    assert {progress.total for progress in seen} == {9}
    assert seen[-1].calls > seen[0].calls
    assert not {"solved", "success", "score"} & set(vars(seen[0]))


def test_a_notebook_shows_progress_unless_it_is_shown_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["none", "bank"], locks(3), program=program(), orders=1)
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    run(["none", "bank"], locks(3), program=program(), orders=1)
    shown = capsys.readouterr().out
    assert [part.split(" · ")[0] for part in shown.split("\r")[1:]] == [f"{done} of 6" for done in range(1, 7)]
    assert (shown.count("\n"), shown[-1]) == (1, "\n")
    run(["none", "bank"], locks(3), program=program(), orders=1, on_progress=lambda progress: None)
    assert capsys.readouterr().out == ""


def test_an_estimate_is_measured(tmp_path: Path) -> None:
    asked = program(lambda prompt: pytest.fail("a model was asked"))
    before = estimate(["none", "bank"], locks(4), program=asked, orders=2)
    assert (before.tasks, before.done, before.calls, before.cost, before.seconds) == (12, 0, None, None, None)
    assert "measured on the first 4 tasks of each arm" in str(before)
    walks = scripted_program(environments=Corridor.make)
    halls = [corridor(f"hall/{number}", 5) for number in range(9)]
    measured = measure(["none", "bank"], halls, program=walks, orders=2, folder=tmp_path, embedder=HashEmbedder())
    assert (measured.tasks, measured.done) == (27, 16)
    seen: list[Progress] = []
    options: dict[str, Any] = {"orders": 2, "folder": tmp_path, "embedder": HashEmbedder(), "on_progress": seen.append}
    evaluate(["none", "bank"], halls, program=walks, **options)
    assert len(seen) == 11, "what was measured is not done again"
    assert measured.calls == pytest.approx(seen[-1].calls * 11 / 27, rel=0.2)


@pytest.mark.parametrize("name", ["safes", "halls", "directory"])
def test_an_estimate_is_off_by_less_than_30_percent(tmp_path: Path, name: str) -> None:
    """Prompts grow with the bank, and in the halls with the steps; their lengths differ by task."""
    lengths = random.Random(4).choices(range(2, 9), k=20)  # the first ones are short
    streams: dict[str, tuple[Any, Any]] = {
        "safes": (locks(20), program()),
        "halls": (
            [corridor(f"hall/{number}", length) for number, length in enumerate(lengths)],
            scripted_program(environments=Corridor.make),
        ),
        "directory": (
            TaskStream.named("directory", n=20),
            ReasoningBank(backbones=Backbones(agent=scripted_lm(stubborn))),
        ),
    }
    stream, asked = streams[name]
    options: dict[str, Any] = {"program": asked, "orders": 3, "folder": tmp_path, "embedder": HashEmbedder()}
    measured = measure(["none", "bank"], stream, **options)
    before = sum(record.tokens for record in read_records(tmp_path))
    evaluate(["none", "bank"], stream, **options)
    used = sum(record.tokens for record in read_records(tmp_path)) - before
    assert (measured.prompt_tokens or 0) + (measured.completion_tokens or 0) == pytest.approx(used, rel=0.3)


def test_an_estimate_of_an_evaluation_that_was_interrupted(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["none", "bank"], locks(4), program=program(), orders=2, folder=tmp_path, on_progress=stop)
    during = estimate(["none", "bank"], locks(4), program=program(), orders=2, folder=tmp_path)
    bank = [record for record in read_records(tmp_path) if record.arm == "bank"]
    assert (during.tasks, during.done) == (12, 8)
    assert during.calls == sum(record.calls for record in bank)  # four tasks of this arm are left, four are done
    assert during.seconds is not None
    with pytest.raises(InputError, match="another evaluation"):
        estimate(["none", "bank"], locks(2), program=program(), orders=2, folder=tmp_path)
    (tmp_path / "runs" / "plan.jsonl").unlink()
    with pytest.raises(InputError, match=r"no runs/plan\.jsonl"):
        estimate(["none", "raw"], locks(4), program=program(), orders=2, folder=tmp_path)


def test_questions_without_answers_are_refused_before_the_first_call() -> None:
    asked = ReasoningBank(backbones=Backbones(agent=scripted_lm(lambda prompt: pytest.fail("a model was asked"))))
    for call in (evaluate, estimate):
        with pytest.raises(InputError, match=r"no task has ground truth.*env_args\.answer"):
            call(["none", "bank"], ["What is it?", "Why?"], program=asked, orders=1)


def test_an_outcome_that_is_unknown_once_costs_its_pair_only() -> None:
    made = itertools.count()

    class Sometimes(Lock):
        def outcome(self) -> Outcome | None:
            return None if next(made) == 9 else super().outcome()

    doubtful = program()
    doubtful.environments = Sometimes.make
    report = run(["none", "bank"], locks(5), program=doubtful, orders=3)
    assert (report.tasks, report.comparisons["bank"].tasks) == (5, 5)
    assert sum(arm.unknown for arm in report.arms.values()) == 1
    assert "1 run had an unknown outcome" in report.to_markdown()


class Shows(dspy.Module):
    """A step of the user's own, without settings."""

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        return Memory()


class Acts(dspy.Module):
    """An agent of the user's own, which numbers its rollouts itself."""

    def forward(self, task: Task, memory: Memory, environments: Any, number: int = 0, temperature: float = 0) -> Any:
        safe = environments(task, "mine")
        safe.reset(task)
        seen, _ = safe.step("0000")
        safe.close()
        return to_trajectory(task, [{"action": "0000", "observation": seen}])


def test_steps_of_ones_own_need_no_settings() -> None:
    own = program()
    own.retrieve, own.act = Shows(), Acts()
    report = run(["none", "bank", "placebo", "shuffled", "true_verdicts"], locks(5), program=own, orders=1)
    assert all(arm.success and arm.success.mean == 0.2 for arm in report.arms.values())
    assert report.arms["true_verdicts"].judge_agreement == 1
    assert not report.arms["none"].repeated, "nobody knows whether this agent samples"
    for arm in ("raw", "success_only"):
        with pytest.raises(InputError, match=f"'{arm}' needs the step Retrieve, and this program has a Shows"):
            run(["none", arm], locks(5), program=own, orders=1)
