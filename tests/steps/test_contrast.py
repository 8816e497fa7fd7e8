"""The contraster reads all rollouts, and its lessons have to name their evidence."""

from __future__ import annotations

from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.config import ContrastConfig
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.schema import Check, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distilled
from rb_dspy.steps.view import estimate_tokens
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.worlds import attempts, item

TASK = Task(id="t", instruction="Find the gold in 12345 rooms.", env_args={"answer": "canary"})
VERDICTS = [Verdict(label="success", reasons="canary"), Verdict(label="failure"), Verdict(label="unknown")]
CONTENTS = (
    "Look behind the mirror first.",
    "Ask whoever lives there.",
    "Count what was taken away.",
    "Dig where the ground is soft.",
    "Leave before it gets dark.",
    "Bring a lamp with oil.",
)


def rollouts(count: int = 3) -> list[Trajectory]:
    return [
        Trajectory(task_id="t", rollout_id=str(n + 10), steps=(Step(action=f"dig {n}", observation="Sand."),))
        for n in range(count)
    ]


def contrasted(drafts: Any, given: list[Trajectory] | None = None, **config: Any) -> tuple[Distilled, list[Prompt]]:
    """What comes of the contraster's ``drafts``, and what it was asked."""
    labelled = config.pop("labelled", None)

    def script(prompt: Prompt) -> Reply:
        return drafts if isinstance(drafts, str) else {"analysis": "They differ.", "memory_items": drafts}

    lm = scripted_lm(script)
    with Backbones(agent=lm).use():
        found: Distilled = Contrast(ContrastConfig(**config))(TASK, given or rollouts(), labelled)
    return found, lm.engine.prompts


def lesson(number: int, evidence: Any = (1,)) -> dict[str, Any]:
    return {**item(f"Lesson {number}", CONTENTS[number]), "evidence": evidence}


def test_it_reads_every_rollout_in_one_call() -> None:
    found, prompts = contrasted([lesson(0)])
    (prompt,) = prompts
    assert [f"dig {n}" in text for n, text in enumerate(attempts(prompt["attempts"]))] == [True] * 3
    assert prompt["task"] == TASK.instruction
    assert found.distiller == "scripted/lm"


def test_without_labels_it_is_told_no_verdict_and_with_them_each() -> None:
    without, with_them = (
        contrasted([lesson(0)], labelled=VERDICTS),
        contrasted([lesson(0)], labelled=VERDICTS, labels=True),
    )
    assert "judged" not in without[1][0].text
    headings = [line for line in with_them[1][0]["attempts"].splitlines() if line.startswith("===")]
    assert headings == [f"=== attempt {n} (judged: {v.label}) ===" for n, v in enumerate(VERDICTS, 1)]
    assert "canary" not in with_them[1][0].text


@pytest.mark.parametrize("labelled", [None, VERDICTS[:2]], ids=["none", "too few"])
def test_labels_need_verdicts(labelled: list[Verdict] | None) -> None:
    with pytest.raises(InputError, match="judge them first"):
        contrasted([lesson(0)], labelled=labelled, labels=True)


@pytest.mark.parametrize(("most", "kept"), [(5, 5), (2, 2)])
def test_there_are_at_most_as_many_lessons_as_configured(most: int, kept: int) -> None:
    found, _ = contrasted([lesson(n) for n in range(5)], max_items=most)
    assert [draft.title for draft in found.drafts] == [f"Lesson {n}" for n in range(kept)]
    assert ("beyond the limit" in found.note) == (most < 5)


def test_a_sixth_lesson_costs_no_other() -> None:
    found, prompts = contrasted([lesson(n) for n in range(6)])
    assert [draft.title for draft in found.drafts] == [f"Lesson {n}" for n in range(5)]
    assert "'Lesson 5' is beyond the limit of 5" in found.note
    assert len(prompts) == 1


@pytest.mark.parametrize(
    ("evidence", "named"),
    [
        ([1, 3], "10, 12"),
        ([3, 1, 3], "10, 12"),
        ("attempts 1 and 3", "10, 12"),
        ("1, 3", "10, 12"),
        ("1-3", "10, 12"),
        ("attempt-2", "11"),
        ("Attempt 2.", "11"),
        (2, "11"),
        (["attempt 2", "#3"], "11, 12"),
        ([0, 2, 99], "11"),
    ],
)
def test_evidence_is_read_however_it_is_written(evidence: Any, named: str) -> None:
    found, prompts = contrasted([lesson(0, evidence)])
    assert [draft.title for draft in found.drafts] == ["Lesson 0"]
    assert f"'Lesson 0' from rollouts {named}" in found.note
    assert len(prompts) == 1


@pytest.mark.parametrize("evidence", [[], "all of them", [0], [4], [99], [-1], "-2", "10002", None])
def test_a_lesson_that_no_rollout_shows_is_left_out_and_the_note_says_so(evidence: Any) -> None:
    found, _ = contrasted([lesson(0, evidence), lesson(1, [2])])
    assert [draft.title for draft in found.drafts] == ["Lesson 1"]
    assert "no rollout is named that shows 'Lesson 0'" in found.note
    assert "'Lesson 1' from rollouts 11" in found.note


@pytest.mark.parametrize("evidence", [[], [99], "none"])
def test_a_contraster_without_evidence_is_not_said_to_have_proposed_nothing(evidence: Any) -> None:
    found, _ = contrasted([lesson(0, evidence), lesson(1, evidence)])
    assert found.drafts == ()
    assert "no rollout is named that shows 'Lesson 0'" in found.note
    assert "nothing" not in found.note


def test_a_contraster_that_proposed_nothing_is_said_to_have() -> None:
    found, _ = contrasted([])
    assert (found.drafts, found.note) == ((), "the contraster proposed nothing")


def test_what_overlaps_or_quotes_the_task_is_left_out_and_the_note_says_so() -> None:
    quoting = item("Quotes", "There are 12345 rooms.", evidence=[1])
    found, _ = contrasted([lesson(0), {**lesson(1), "title": "LESSON 0"}, quoting])
    assert [draft.title for draft in found.drafts] == ["Lesson 0"]
    assert "overlaps" in found.note
    assert "quotes this task (12345)" in found.note


DEEP = "[[ ## analysis ## ]]\nHm.\n\n[[ ## memory_items ## ]]\n" + "[" * 2000
DEEPER = '{"analysis": "Hm.", "memory_items": ' + '{"a": ' * 400


@pytest.mark.parametrize(
    "answer", ["- lesson: be good", "[[ ## memory_items ## ]]\nnone", DEEP, DEEPER], ids=lambda answer: answer[:30]
)
def test_a_contraster_that_cannot_be_understood_gives_a_note(answer: str) -> None:
    found, prompts = contrasted(answer)
    assert found.drafts == ()
    assert found.note.startswith("not contrasted: the contraster's answer could not be read")
    assert len(prompts) == 2  # one repair


def test_no_text_at_all_is_no_answer_but_a_model_that_is_not_well() -> None:
    with pytest.raises(InfrastructureError, match="the contraster's language model gave no text, twice"):
        contrasted("")


def test_a_contraster_that_is_down_is_an_error() -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with Backbones(agent=scripted_lm(script)).use(), pytest.raises(InfrastructureError, match="contraster"):
        Contrast()(TASK, rollouts())


def test_many_long_rollouts_share_the_budget_and_each_keeps_its_end() -> None:
    long = [
        Trajectory(
            task_id="t",
            rollout_id=str(n),
            steps=tuple(Step(action=f"a{n}.{step}.", observation="sand " * 50) for step in range(40)),
        )
        for n in range(8)
    ]
    _, (prompt,) = contrasted([lesson(0)], long, view_tokens=500)
    texts = attempts(prompt["attempts"])
    assert len(texts) == 8
    assert all(f"a{n}.39." in text for n, text in enumerate(texts))
    assert estimate_tokens(prompt["attempts"]) < 4000 * 1.1


def test_checks_stand_in_what_it_reads() -> None:
    checked = rollouts(2)
    checked[1] = checked[1].model_copy(
        update={"checks": (Check(after=1, findings="The sand is wet.", decision="revise"),)}
    )
    _, (prompt,) = contrasted([lesson(0)], checked)
    first, second = attempts(prompt["attempts"])
    assert "The sand is wet." not in first
    assert "[check of the work so far: revise] The sand is wet." in second


def test_the_contraster_has_a_role_of_its_own_which_falls_back_to_the_distiller() -> None:
    def answer(prompt: Prompt) -> Reply:
        return {"analysis": "x", "memory_items": [lesson(0)]}

    agent, distiller, contraster = (scripted_lm(answer, model=f"scripted/{n}") for n in ("a", "d", "c"))
    with Backbones(agent=agent, distiller=distiller, contraster=contraster).use():
        assert Contrast()(TASK, rollouts()).distiller == "scripted/c"
    with Backbones(agent=agent, distiller=distiller).use():
        assert Contrast()(TASK, rollouts()).distiller == "scripted/d"


async def test_asyncio_gives_the_same() -> None:
    lm = scripted_lm(lambda prompt: {"analysis": "x", "memory_items": [lesson(0, "1 and 2")]})
    with Backbones(agent=lm).use():
        assert await Contrast().acall(TASK, rollouts()) == contrasted([lesson(0, "1 and 2")])[0]
