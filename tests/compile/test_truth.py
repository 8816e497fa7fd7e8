"""Tasks whose outcome nobody knows do not count, and where none is known nothing is spent."""

from __future__ import annotations

from typing import Any

import pytest

from rb_dspy.backbones import Backbones
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.matrix import matrix
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.ratings import Ratings, left_out
from rb_dspy.compile.scores import compare, estimate
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Outcome, Task
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.testing import Lock, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.school import Hushed, compiled, hushed, streams
from tests.compile.teacher import pupil
from tests.worlds import answers, lock


class _Silent(Lock):
    def outcome(self) -> Outcome | None:  # type: ignore[override]
        return None


def silent(task: Task, rollout: str) -> Lock:
    """Nobody knows how any task ended."""
    return _Silent.make(task, rollout)


def silent_on_one(task: Task, rollout: str) -> Lock:
    """Nobody knows it of the first task of each of dev and held-out."""
    unknown = {streams().dev.tasks[0].id, streams().held_out.tasks[0].id}
    return (_Silent if task.id in unknown else Lock).make(task, rollout)


def program(environments: Any, lm: Any = None) -> MaTTS:
    return MaTTS(ReasoningBank(backbones=Backbones(agent=lm or scripted_lm(pupil)), environments=environments), k=2)


KINDS = ("apples", "boats", "clouds", "drums")


def questions(name: str, **env_args: Any) -> TaskStream:
    tasks = (
        Task(id=f"{name}/{kind}", instruction=f"{name}: how many {kind}?", template=f"{name}/{kind}", env_args=env_args)
        for kind in KINDS
    )
    return TaskStream(name, tuple(tasks))


@pytest.mark.parametrize("stage", ["all", "judge"])
@pytest.mark.parametrize("untold", ["compile", "dev", "held_out"])
@pytest.mark.parametrize(("env_args", "has"), [({"anwser": "3"}, "anwser"), ({}, "none"), ({"answers": []}, "answers")])
def test_questions_without_an_answer_are_refused_before_anything_is_asked(
    stage: Any, untold: str, env_args: dict[str, Any], has: str
) -> None:
    lm = scripted_lm(pupil)
    parts = {part: questions(part, answer="3") for part in ("compile", "dev", "held_out")}
    parts[untold] = questions(untold, **env_args)
    with pytest.raises(InputError) as caught:
        compile_program(
            ReasoningBank(backbones=Backbones(agent=lm)),
            Streams(**parts, check=False),
            stage=stage,
            embedder=HashEmbedder(),
            reflection=lm,
        )
    assert str(caught.value) == (
        f"{untold}: none of its 4 tasks has a known answer, so nothing can be scored: put it into env_args.answer of"
        f" each, or env_args.answers (the first, '{untold}/apples', is of the environment 'question' with env_args:"
        f" {has})"
    )
    assert lm.engine.prompts == []


@pytest.mark.parametrize("stage", ["judge", "agent", "all"])
def test_an_environment_that_never_says_how_it_ended_ends_the_compile_early(stage: str) -> None:
    told: list[Progress] = []
    with pytest.raises(
        InputError, match=r"none of its \d+ tasks has ground truth, .*: let Environment\.outcome say it"
    ):
        compiled(program=program(silent), stage=stage, budget=100, on_progress=told.append)
    assert max(progress.metric_calls for progress in told) <= 12
    assert not any(progress.note.startswith("scoring") for progress in told)


@pytest.mark.stress
def test_single_tasks_without_ground_truth_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    whole, made = (
        compiled(program=program(environments), optimizer="bootstrap", orders=2)
        for environments in (Lock.make, silent_on_one)
    )
    for split in ("dev", "held_out"):
        one, other = getattr(made.scores, split), getattr(whole.scores, split)
        assert one.before.tasks == one.difference.tasks == other.before.tasks - 1
    assert made.scores.held_out.after.mean == 1.0
    assert f"held-out: 1 of {len(streams().held_out)} tasks have no ground truth, and do not count" in caplog.text


def searched(parts: Streams, environments: Any = None, **given: Any) -> Any:
    """A compile whose program solves all that anybody knows the outcome of."""
    lm = scripted_lm(answers)
    made = ReasoningBank(backbones=Backbones(agent=lm), **({"environments": environments} if environments else {}))
    return compiled(**{"program": made, "streams": parts, "optimizer": "bootstrap", "budget": 30, **given})


def doors(name: str, *tells: str | None, code: str = "0000") -> TaskStream:
    """Locks of a maker each; ``tells`` as in ``hushed``, None for plain ones."""
    made = [lock(f"{name}{number}", number, code) for number in range(len(tells))]
    return TaskStream(name, tuple(hushed(task, how) if how else task for task, how in zip(made, tells, strict=True)))


@pytest.mark.parametrize("optimizer", ["bootstrap", "gepa"])
@pytest.mark.parametrize("tells", [(None,) * 6, (None, "nothing") * 3, ("nothing",) * 5 + (None,)])
def test_what_nobody_knows_keeps_no_candidate_from_a_perfect_score(optimizer: str, tells: tuple[str | None]) -> None:
    parts = Streams(doors("Abus", *tells), doors("Yale", *tells), doors("Basta", None), check=False)
    made = searched(parts, Hushed.of, optimizer=optimizer)
    assert [found.score for found in made.candidates] == [1.0]
    assert made.metric_calls == 3  # each of the three windows of dev, once
    assert made.scores.dev.before.mean == 1.0
    assert made.scores.dev.before.tasks == tells.count(None)


def test_windows_of_questions_without_an_answer_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    parts = {name: questions(name, answer="0000") for name in ("compile", "dev", "held_out")}
    open_ones = questions("dev").tasks[:2]
    parts["dev"] = TaskStream("dev", (*open_ones, *parts["dev"].tasks[2:]))
    made = searched(Streams(**parts, check=False), window=2)
    assert (made.metric_calls, [found.score for found in made.candidates]) == (1, [1.0])
    assert made.examples == {"train": 2, "dev": 1}
    assert "dev: 1 of 2 windows have no task with ground truth, and are left out" in caplog.text
    assert "dev: 2 of 4 tasks have no ground truth, and do not count" in caplog.text


def test_a_matrix_says_that_nobody_knows() -> None:
    found = matrix(program(silent), {}, {"pupil": scripted_lm(pupil)}, streams().held_out, embedder=HashEmbedder())
    assert found.cells[0].success is None
    assert "held-out: none of its 12 tasks has ground truth" in found.cells[0].error


def test_a_task_that_is_known_somewhere_counts_everywhere() -> None:
    """Else a program would gain where the environment cannot tell what it did."""
    before, after = Ratings(), Ratings()
    for task in ("a", "b", "never"):
        before.add(task, 0.0, unknown=task == "never")
        after.add(task, float(task == "a"), unknown=task != "a")
    assert left_out(before, after) == {"never"}
    assert left_out(after) == {"b", "never"}
    found = compare(before, after)
    assert (found.difference.tasks, found.after.mean) == (2, 0.5)
    assert (estimate(after).tasks, estimate(after).mean) == (1, 1.0)
    broke = Ratings()
    broke.add("never", 0.0, broken=True, unknown=True)
    assert left_out(broke, after) == {"b", "never"}
    assert left_out(broke) == set()
