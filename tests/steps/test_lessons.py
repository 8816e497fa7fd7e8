"""Judge, distil, contrast and select: what they read, what they accept, and what they do with bad answers."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest

from rb_dspy import Backbones
from rb_dspy.config import ContrastConfig, DistillConfig, JudgeConfig, SelectConfig
from rb_dspy.errors import BackboneError, ContextOverflow, InfrastructureError, InputError, UnparseableOutput
from rb_dspy.schema import MemoryDraft, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Judge, Review, Select, judge_rollout
from rb_dspy.testing import Prompt, Reply, locksmith, scripted_lm
from rb_dspy.testing.locks import attempts

TASK = Task(id="t", instruction="Page the owner of cobalt.", env_args={"answer": "Quito-7731"})
GOOD = Trajectory(
    task_id="t", steps=(Step(thought="hm", action="Lima", observation="Wrong. Quito owns cobalt."),), answer="Lima"
)


def run(script: Any, step: Any, *args: Any) -> Any:
    with Backbones(agent=scripted_lm(script)).use():
        return step(*args)


def always(reply: Reply) -> Any:
    return lambda prompt: reply


# Judge


def test_any_judge_may_judge_without_ground_truth() -> None:
    seen: list[Task] = []

    def plain(task: Task, trajectory: Trajectory) -> Verdict:
        seen.append(task)
        return Verdict(label="success")

    async def awaited(task: Task, trajectory: Trajectory) -> Verdict:
        await asyncio.sleep(0)
        return plain(task, trajectory)

    class Module(dspy.Module):
        def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
            return plain(task, trajectory)

    for judge in (plain, awaited, Module()):
        assert run(locksmith, judge_rollout, judge, TASK, GOOD).label == "success"
    assert [task.env_args for task in seen] == [{}, {}, {}]


def test_a_judge_that_fails_or_returns_something_else_is_an_infrastructure_error() -> None:
    def broken(task: Task, trajectory: Trajectory) -> Verdict:
        raise KeyError("no such rubric")

    def odd(task: Task, trajectory: Trajectory) -> Any:
        return "success"

    for judge in (broken, odd):
        with pytest.raises(InfrastructureError):
            judge_rollout(judge, TASK, GOOD)


def test_what_a_judge_reads() -> None:
    steps = tuple(Step(thought=f"guess {n}", action=f"go {n}", observation=f"seen {n}") for n in range(1, 5))
    trajectory = Trajectory(task_id="t", first_observation="the start", steps=steps)
    configs = (JudgeConfig(), JudgeConfig(states=2), JudgeConfig(strict=False, thoughts=False, states=1))
    lm = scripted_lm(always({"reasons": "r", "label": "success"}))
    with Backbones(agent=lm).use():
        for config in configs:
            assert Judge(config)(TASK, trajectory).label == "success"
    whole, last, plain = lm.engine.prompts
    texts = ("the start", "seen 1", "seen 2", "seen 3", "seen 4", "guess 1", "go 1")
    assert [text in whole["trajectory"] for text in texts] == [True] * 7
    assert [text in last["trajectory"] for text in texts] == [False, False, False, True, True, True, True]
    assert [text in plain["trajectory"] for text in texts] == [False, False, False, False, True, False, True]
    assert whole.system == last.system != plain.system


def test_a_verdict_that_the_caller_stated_costs_no_call() -> None:
    known = GOOD.model_copy(update={"known_label": "failure", "feedback": "cobalt is Quito's"})
    verdict = judge_rollout(Judge(), TASK, known)  # without a language model
    assert (verdict.label, verdict.reasons) == ("failure", "cobalt is Quito's")


# Distill


def lesson(title: str = "Owner of cobalt", content: str = "Quito owns cobalt.", **more: Any) -> dict[str, Any]:
    return {"title": title, "description": "d", "content": content, **more}


def test_the_distiller_reads_what_the_environment_said_and_any_feedback_in_fields_of_their_own() -> None:
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        return {"memory_items": [lesson()]}

    trajectory = GOOD.model_copy(update={"feedback": "Use the register.\n[[ ## judge_reasons ## ]]\nx"})
    done = run(script, Distill(), TASK, trajectory, Verdict(label="failure", reasons="wrong team"))
    (prompt,) = prompts
    assert prompt["environment_said"] == "Wrong. Quito owns cobalt."
    assert prompt["feedback"].startswith("Use the register.")
    assert "wrong team" not in prompt.text
    assert "thought:" not in prompt["trajectory"]
    assert prompt.temperature == 0
    assert done.drafts == (MemoryDraft(title="Owner of cobalt", description="d", content="Quito owns cobalt."),)
    assert done.distiller == "scripted/lm"


def test_the_distiller_reads_every_observation_once_not_only_the_last() -> None:
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        return {"memory_items": [lesson()]}

    said = ("Lock the doors first.", "Lock the doors first.", "", "Taken.")
    steps = tuple(Step(action="start", observation=each) for each in said)
    run(script, Distill(), TASK, Trajectory(task_id="t", steps=steps), Verdict(label="failure", reasons=""))
    assert prompts[0]["environment_said"].split("\n") == ["Lock the doors first.", "Taken."]


def test_success_failure_and_general_wording_have_instructions_of_their_own() -> None:
    systems: list[str] = []

    def script(prompt: Prompt) -> Reply:
        systems.append(prompt.system)
        return {"analysis": "a", "memory_items": [lesson()]}

    for prompts in ("facts", "general", "procedures"):
        for label in ("success", "failure"):
            run(script, Distill(DistillConfig(prompts=prompts)), TASK, GOOD, Verdict(label=label))
    assert len(set(systems)) == 6


@pytest.mark.parametrize(
    ("prompts", "observations", "shown", "with_reasons"),
    [
        ("facts", True, True, False),
        ("facts", False, True, False),  # what the environment said is the source of facts
        ("general", True, True, False),
        ("general", False, False, False),
        ("procedures", True, True, True),
        ("procedures", False, False, True),
    ],
)
def test_what_distillers_read(prompts: Any, observations: bool, shown: bool, with_reasons: bool) -> None:
    lm = scripted_lm(always({"analysis": "a", "memory_items": [lesson()]}))
    with Backbones(agent=lm).use():
        config = DistillConfig(prompts=prompts, observations=observations)
        Distill(config)(TASK, GOOD, Verdict(label="success", reasons="It was Lima."))
    (prompt,) = lm.engine.prompts
    assert ("Quito" in prompt.text) is shown
    assert ("It was Lima." in prompt.text) is with_reasons
    assert "action: Lima" in prompt["trajectory"]


def test_an_unknown_verdict_teaches_nothing_unless_configured() -> None:
    unknown = Verdict(label="unknown")
    assert Distill()(TASK, GOOD, unknown).drafts == ()  # no language model needed
    config = DistillConfig(distill_unknown=True)
    assert len(run(always({"memory_items": [lesson()]}), Distill(config), TASK, GOOD, unknown).drafts) == 1


def test_empty_repeated_and_surplus_drafts_are_dropped_and_facts_are_not() -> None:
    lessons = [
        lesson("", "no title"),
        lesson("Limit for refunds", "In the EU, 200 euros can be refunded."),
        lesson("Limit for refunds", "In the US, 900 dollars can be refunded."),
        lesson("Again", " in the EU,  200 euros can be refunded!"),
        lesson("Other limit", "In the EU, 200 euros can not be refunded."),
        lesson("Four", "A completely different remark."),
    ]
    done = run(always({"memory_items": lessons}), Distill(), TASK, GOOD, Verdict(label="success"))
    assert [draft.title for draft in done.drafts] == ["Limit for refunds", "Limit for refunds", "Other limit"]
    assert done.note.count(";") == 2, "one was incomplete, one was repeated, one was too many"


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        ({"title": "A", "description": None, "content": "A fact."}, ["A fact.", "Other."]),
        ({"title": "A", "content": ["A fact.", None, "Two."]}, ["A fact.\nTwo.", "Other."]),
        ({"title": "A", "content": "cut \ud83d"}, ["cut \ufffd", "Other."]),
        ({"title": 7, "content": 42}, ["42", "Other."]),
        ({"Title": "A", "CONTENT": "A fact.", "more": {}}, ["A fact.", "Other."]),
        ({"title": "A", "content": {"a": 1}}, ["Other."]),
        ({"title": "\u200b", "content": "A fact."}, ["Other."]),
        ({"title": "A", "content": None}, ["Other."]),
        ("no object", ["Other."]),
        (None, ["Other."]),
        ([], ["Other."]),
    ],
)
@pytest.mark.parametrize("prompts", ["facts", "general"])
def test_a_bad_draft_is_mended_or_loses_only_itself(bad: Any, kept: list[str], prompts: Any) -> None:
    reply = {"analysis": "a", "memory_items": [bad, lesson("B", "Other.")]}
    done = run(always(reply), Distill(DistillConfig(prompts=prompts)), TASK, GOOD, Verdict(label="success"))
    assert [draft.content for draft in done.drafts] == kept


# Review


@pytest.mark.parametrize("label", ["success", "failure"])
def test_one_call_gives_the_verdict_and_the_lessons_that_two_calls_give(label: str) -> None:
    """In the environment's own words, without repetition: drafts are admitted as the distiller's are."""
    prompts: list[Prompt] = []
    garbled = "It is said that the team Quito owns cobalt, as a fact about cobalt."

    def script(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        lessons = [lesson("Owner", garbled), lesson("Again", garbled), lesson("", "no title")]
        return {"reasons": "it says so", "label": label, "memory_items": lessons}

    trajectory = GOOD.model_copy(
        update={"steps": (Step(thought="hm", action="Lima", observation="So. The team Quito owns cobalt."),)}
    )
    verdict, done = run(script, Review(), TASK, trajectory)
    (prompt,) = prompts
    assert "thought:" not in prompt["trajectory"]
    judged = run(script, Judge(), TASK, trajectory)
    assert verdict == judged == Verdict(label=label, reasons="it says so")
    assert done == run(script, Distill(), TASK, trajectory, judged)
    assert [draft.content for draft in done.drafts] == ["The team Quito owns cobalt."]
    assert len(done.note.split(";")) == 2


@pytest.mark.parametrize("bad", [{"label": "perhaps"}, {"label": ""}, {"memory_items": "none"}])
def test_half_an_answer_in_one_call_is_no_answer(bad: Any) -> None:
    reply = {"reasons": "r", "label": "success", "memory_items": [lesson()], **bad}
    with pytest.raises(UnparseableOutput):
        run(always(reply), Review(), TASK, GOOD)


# Contrast


def test_contrast_shows_observations_unless_configured() -> None:
    lm = scripted_lm(always({"analysis": "a", "memory_items": [lesson()]}))
    with Backbones(agent=lm).use():
        for observations in (True, False):
            Contrast(ContrastConfig(prompts="general", observations=observations))(TASK, [GOOD, GOOD])
    shown, hidden = lm.engine.prompts
    assert shown["attempts"].count("Quito owns cobalt") == 4
    assert "Quito" not in hidden["attempts"]
    assert hidden["attempts"].count("action: Lima") == 2


def test_contrast_shows_labels_only_if_configured_and_then_needs_them() -> None:
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        return {"analysis": "a", "memory_items": [lesson(), lesson("B", "other words entirely here")]}

    verdicts = [Verdict(label="success"), Verdict(label="failure")]
    done = run(script, Contrast(), TASK, [GOOD, GOOD], verdicts)
    assert [draft.title for draft in done.drafts] == ["Owner of cobalt", "B"]
    run(script, Contrast(ContrastConfig(labels=True)), TASK, [GOOD, GOOD], verdicts)
    assert "judged:" not in prompts[0]["attempts"]
    assert "(judged: failure)" in prompts[1]["attempts"]
    with pytest.raises(InputError):
        Contrast(ContrastConfig(labels=True))(TASK, [GOOD, GOOD], verdicts[:1])


# Select


def rollouts(*answers: str | None) -> list[Trajectory]:
    return [Trajectory(task_id="t", answer=each, rollout_id=str(n)) for n, each in enumerate(answers)]


def chooser(answer: str) -> Any:
    """Chooses the attempt with that answer, wherever it stands."""

    def script(prompt: Prompt) -> Reply:
        listed = attempts(prompt["candidates"])
        return {"analysis": f"{answer} it is", "choice": next(n for n, text in enumerate(listed, 1) if answer in text)}

    return script


@pytest.mark.parametrize("orders", [1, 3])
def test_the_choice_is_mapped_back_from_the_shuffled_order(orders: int) -> None:
    select = Select(SelectConfig(orders=orders))
    for wish, index in (("red", 0), ("green", 1), ("blue", 2)):
        chosen = run(chooser(wish), select, TASK, rollouts("red", "green", "blue"))
        assert (chosen.index, chosen.votes[index], chosen.fallback) == (index, orders, False)
        assert chosen.analysis == f"{wish} it is"


def test_a_preference_for_a_place_is_cancelled_by_as_many_orders_as_rollouts() -> None:
    first = always({"analysis": "a", "choice": 1})
    chosen = run(first, Select(SelectConfig(orders=3)), TASK, rollouts("x", "y", "y"))
    assert chosen.votes == (1, 1, 1)
    assert chosen.index in (1, 2)  # the answer that most gave


@pytest.mark.parametrize(
    "reply", ["nonsense", {"analysis": "a", "choice": 9}, {"analysis": "a", "choice": 0}, {"analysis": "a"}]
)
def test_a_choice_that_cannot_be_used_falls_back_and_says_so(reply: Reply) -> None:
    chosen = run(always(reply), Select(), TASK, rollouts("x", "y", "Y "))
    assert chosen.fallback
    assert chosen.index in (1, 2)
    verdicts = [Verdict(label="success"), Verdict(label="failure"), Verdict(label="unknown")]
    assert run(always(reply), Select(SelectConfig(verdicts=True)), TASK, rollouts("x", "y", "Y "), verdicts).index == 0


def test_one_rollout_needs_no_call_and_a_model_that_cannot_be_used_ends_it() -> None:
    assert Select()(TASK, rollouts("x")).index == 0
    with pytest.raises(BackboneError):
        Select()(TASK, rollouts("x", "y"))
    with pytest.raises(InputError):
        Select()(TASK, [])


# Prompts that are too long


def test_a_prompt_that_is_too_long_is_shortened_until_it_fits() -> None:
    from dspy import lm15

    sizes: list[int] = []
    limit = 9000

    def script(prompt: Prompt) -> Reply:
        sizes.append(len(prompt.text))
        if len(prompt.text) > limit:
            raise lm15.ContextLengthError("too long")
        return {"reasons": "r", "label": "success"}

    steps = tuple(Step(action=f"a{n}", observation="x" * 4000) for n in range(20))
    verdict = run(script, Judge(JudgeConfig(view_tokens=16_000)), TASK, Trajectory(task_id="t", steps=steps))
    assert verdict.label == "success"
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 1
    limit = 1000
    with pytest.raises(ContextOverflow):
        run(script, Judge(), TASK, GOOD)
