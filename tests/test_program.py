"""The program: names of runs, what waits, foreign rollouts, arguments, and settings of retrieval."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank, Pending
from rb_dspy.config import DistillConfig, ProgramConfig, RetrieveConfig
from rb_dspy.errors import (
    BackboneError,
    ConfigError,
    InfrastructureError,
    InputError,
    InvalidTask,
    InvalidTrajectory,
    UnparseableOutput,
)
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Retrieved, Step, Trajectory, Verdict
from rb_dspy.testing import Faulty, Lock, Prompt, Reply, lock, locksmith, scripted_lm

TASK = lock("abus", 1, "4711")
STEPS = [{"thought": "t", "action": "0000", "observation": "It stays shut."}]


def program(script: Any = locksmith, **kwargs: Any) -> ReasoningBank:
    return ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=Lock.make, **kwargs)


def asked(made: Any, field: str) -> list[Prompt]:
    return [prompt for prompt in made.backbones.lm("agent").engine.prompts if field in prompt.wants]


def failing(field: str, times: int, error: Exception | str) -> Any:
    """Plays all roles, and fails the first ``times`` calls that want ``field``: raises, or says what is no answer."""
    left = times

    def script(prompt: Prompt) -> Reply:
        nonlocal left
        if field in prompt.wants and left:
            left -= 1
            if isinstance(error, Exception):
                raise error
            return error
        return locksmith(prompt)

    return script


def test_without_a_name_every_call_is_a_run_of_its_own(bank: MemoryBank) -> None:
    made = program()
    runs = {made(task=TASK, bank=bank).experience.run_id for _ in range(2)}
    assert len(runs) == 2
    named = [made(task=TASK, bank=bank, run_id="r").experience.id for _ in range(2)]
    assert len(set(named)) == 1
    assert len(list(bank.experiences())) == 3


def test_a_rollout_that_fails_leaves_nothing(bank: MemoryBank) -> None:
    with pytest.raises(InfrastructureError):
        program()(task=TASK, bank=bank, environments=Faulty.of(Lock.make, error=OSError("gone")))
    with pytest.raises(BackboneError):
        ReasoningBank(environments=Lock.make)(task=TASK, bank=bank)
    assert (list(bank.experiences()), bank.pending()) == ([], [])


@pytest.mark.parametrize("learn", ["two_calls", "one_call"])
@pytest.mark.parametrize("field", ["label", "memory_items"])
def test_an_answer_that_cannot_be_parsed_leaves_the_rollout_pending_and_after_two_resumes_it_is_unknown(
    bank: MemoryBank, field: str, learn: Any
) -> None:
    made = program(failing(field, 99, "no answer that can be parsed"), config=ProgramConfig(learn=learn))
    with pytest.raises(UnparseableOutput):
        made(task=TASK, bank=bank, run_id="r")
    with pytest.raises(UnparseableOutput):
        made.resume(*bank.pending())
    (pending,) = bank.pending()
    assert pending.tries == 2
    assert "parsed" in pending.error
    done = made.resume(pending)
    assert (done.verdict.label, done.memory_items, bank.pending()) == ("unknown", (), [])


# How many calls learn from a rollout

ONE = ProgramConfig(learn="one_call")


def reviewing(prompt: Prompt) -> Reply:
    """Plays all roles; judge and distiller say the same in one call and in two."""
    reply: dict[str, Any] = {"thought": "", "action": "4711"} if "action" in prompt.wants else {}
    if "label" in prompt.wants:
        reply |= {"reasons": "r", "label": "success" if "opens" in prompt["final_state"] else "failure"}
    if "memory_items" in prompt.wants:
        reply |= {"memory_items": [{"title": "Code", "content": "The lock of abus has the code 4711."}]}
    return reply


def calls(made: Any) -> list[tuple[str, ...]]:
    prompts = made.backbones.lm("agent").engine.prompts
    return [tuple(each for each in ("label", "memory_items") if each in prompt.wants) for prompt in prompts]


@pytest.mark.parametrize("wrap", [lambda made: made, lambda made: MaTTS(made, k=1)])
@pytest.mark.parametrize("code", ["4711", "0815"])
def test_one_call_learns_what_two_calls_learn(bank: MemoryBank, code: str, wrap: Any) -> None:
    one, two = wrap(program(reviewing, config=ONE)), wrap(program(reviewing))
    first, second = (made(task=lock("abus", 1, code), bank=bank) for made in (one, two))
    assert calls(one) == [(), ("label", "memory_items")]
    assert calls(two) == [(), ("label",), ("memory_items",)]
    assert first.verdict == second.verdict
    assert first.verdict.label == ("success" if code == "4711" else "failure")
    assert [item.id for item in first.memory_items] == [item.id for item in second.memory_items] != []
    assert [item.polarity for item in first.memory_items] == [item.polarity for item in second.memory_items]
    assert first.usage.keys() == {"agent", "distiller"}


def test_the_distillers_model_reviews(bank: MemoryBank) -> None:
    lms = {role: scripted_lm(reviewing, model=f"scripted/{role}") for role in ("agent", "judge", "distiller")}
    done = ReasoningBank(ONE, backbones=lms, environments=Lock.make)(task=TASK, bank=bank)
    assert [len(lm.engine.prompts) for lm in lms.values()] == [1, 0, 1]
    assert done.memory_items[0].provenance.distiller == "scripted/distiller"


def test_a_known_verdict_and_a_judge_of_ones_own_are_not_asked_again(bank: MemoryBank) -> None:
    stated, judged = (
        program(reviewing, config=ONE, judge=judge) for judge in (None, lambda *_: Verdict(label="success"))
    )
    assert stated.learn("Open it.", STEPS, bank, verdict="success").verdicts[0].label == "success"
    assert judged(task=TASK, bank=bank).verdict.label == "success"
    assert (calls(stated), calls(judged)) == ([("memory_items",)], [(), ("memory_items",)])


@pytest.mark.parametrize("mode", ["parallel", "best_of_n", "vanilla"])
def test_several_rollouts_are_judged_and_distilled_apart(bank: MemoryBank, mode: Any) -> None:
    made = MaTTS(program(config=ONE), k=2, mode=mode)
    made(task=TASK, bank=bank)
    assert ("label", "memory_items") not in calls(made)
    assert calls(made).count(("label",)) == 2


def test_the_papers_prompts_need_two_calls() -> None:
    with pytest.raises(ConfigError, match="two_calls"):
        ProgramConfig(learn="one_call", distill=DistillConfig(prompts="general"))


OWNER = "The service falcon is owned by team Turin"


@pytest.mark.parametrize("learn", ["two_calls", "one_call"])
@pytest.mark.parametrize(
    ("observation", "lesson", "skipped"),
    [
        (f"Right. {OWNER}.", f"{OWNER}.", True),
        (f"31\nThe result is right. {OWNER}.", f"{OWNER}.", True),
        (f"Right. {OWNER}. It never sleeps.", f"{OWNER}.", False),
        (f"Right. {OWNER}.", OWNER.replace("Turin", "Lima") + ".", False),
        (f"Right. {OWNER}.", OWNER.replace("is owned", "is not owned") + ".", False),
        ("Right. Alice reports to the head Bob.", "Bob reports to the head Alice.", False),
        (f"Right. {OWNER}. {'long ' * 200}.", f"{OWNER}.", False),
        ("The right answer is: 42", f"{OWNER}.", False),
        ("", f"{OWNER}.", False),
        (f"Right. {OWNER}.", "", False),
    ],
)
def test_a_success_that_says_nothing_new_is_not_distilled(
    bank: MemoryBank, learn: Any, observation: str, lesson: str, skipped: bool
) -> None:
    config = ProgramConfig(learn=learn, skip_known=True, retrieve=RetrieveConfig(min_score=-1.0))

    def script(prompt: Prompt) -> Reply:
        return {**reviewing(prompt), "label": "success"}

    made = program(script, config=config)
    if lesson:
        bank.add("Note", lesson)
    memory = made.recall("Who owns falcon?", bank)
    steps = [{"action": "Turin", "observation": observation}]
    experience = made.learn("Who owns falcon?", steps, bank, memory=memory)
    assert ("memory_items",) not in calls(made) if skipped else len(experience.items) == 1
    assert bool(experience.items) is not skipped
    assert experience.note.startswith("nothing new") is skipped
    uses = [use.label for item in memory.items for use in bank.uses(item.id)]
    assert uses == ["success"] * bool(lesson), "the use is logged either way"


@pytest.mark.parametrize("learn", ["two_calls", "one_call"])
@pytest.mark.parametrize("stated", [{"verdict": "failure"}, {"verdict": "success", "feedback": f"{OWNER}."}, {}])
def test_a_failure_and_what_a_person_says_are_always_distilled(bank: MemoryBank, learn: Any, stated: Any) -> None:
    bank.add("Owner", f"{OWNER}.")
    made = program(reviewing, config=ProgramConfig(learn=learn, skip_known=True))
    memory = made.recall("Who owns falcon?", bank)
    steps = [{"action": "Lima", "observation": f"Wrong. {OWNER}."}]
    experience = made.learn("Who owns falcon?", steps, bank, memory=memory, **stated)
    assert memory.items
    assert len(experience.items) == 1
    assert calls(made) == ([("memory_items",)] if stated else [("label",), ("memory_items",)])


# A task that the run has done


def answering(*given: str) -> Any:
    """Plays all roles; the agent gives these answers, one a rollout."""
    left = list(given)

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return {"thought": "", "action": left.pop(0)}
        if "label" in prompt.wants:
            return {"reasons": "", "label": "success" if "It opens" in prompt["final_state"] else "failure"}
        if "choice" in prompt.wants:
            return {"analysis": "", "choice": 3}
        return {"analysis": "", "memory_items": [{"title": "Code", "description": "", "content": "It is 4711."}]}

    return script


@pytest.mark.parametrize("second", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize("first", ["ReasoningBank", "MaTTS"])
def test_a_second_call_of_a_run_returns_what_is_stored_and_calls_no_model(
    bank: MemoryBank, first: str, second: str
) -> None:
    made = program(answering("0000", "4711", "1111"))
    kinds: dict[str, Any] = {"ReasoningBank": made, "MaTTS": MaTTS(made, k=3)}
    done = kinds[first](task=TASK, bank=bank, run_id="r")
    calls = len(made.backbones.lm("agent").engine.prompts)
    again = kinds[second](task=TASK, bank=bank, run_id="r")
    assert len(made.backbones.lm("agent").engine.prompts) == calls
    assert (done.stored, again.stored) == (False, True)
    assert (again.experience, again.memory_items) == (done.experience, done.memory_items)
    stored = list(zip(done.experience.trajectories, done.experience.verdicts, strict=True))
    assert (again.trajectory, again.verdict) in stored
    assert again.answer == again.trajectory.answer
    assert (again.answer, again.verdict) == (done.answer, done.verdict)
    if second == "MaTTS":
        assert list(zip(again.trajectories, again.verdicts, strict=True)) == stored


def test_a_run_that_was_rolled_back_is_refused_before_anything_is_paid_for(bank: MemoryBank) -> None:
    made = program()
    made(task=TASK, bank=bank, run_id="r")
    calls = len(made.backbones.lm("agent").engine.prompts)
    bank.rollback("run:r")
    for kind in (made, MaTTS(made, k=3)):
        with pytest.raises(InputError, match="removed since"):
            kind(task=TASK, bank=bank, run_id="r")
    assert len(made.backbones.lm("agent").engine.prompts) == calls


def test_threads_of_a_run_each_get_the_verdict_of_their_own_answer(bank: MemoryBank) -> None:
    both = threading.Barrier(2)

    def meeting(script: Any) -> Any:
        def slow(prompt: Prompt) -> Reply:
            if "label" in prompt.wants:
                both.wait(30)
            reply: Reply = script(prompt)
            return reply

        return slow

    with ThreadPoolExecutor(2) as pool:
        made = [program(meeting(answering(answer))) for answer in ("4711", "0000")]
        done = list(pool.map(lambda each: each(task=TASK, bank=bank, run_id="r"), made))
    assert [(each.answer, each.verdict.label) for each in done] == [("4711", "success"), ("0000", "failure")]
    assert sorted(each.experience is None for each in done) == [False, True]
    (stored,) = bank.experiences()
    (learned,) = (each for each in done if each.experience)
    assert (learned.experience, learned.trajectory) == (stored, stored.trajectories[0])


# Foreign rollouts


@pytest.mark.parametrize("run_id", ["", "r"])
@pytest.mark.parametrize("breaks", [False, True], ids=["learned", "pending"])
@pytest.mark.parametrize(
    "said", [{"outcome": 0.0}, {"verdict": "failure"}, {"verdict": "failure", "feedback": "It never opened."}], ids=str
)
def test_a_correction_replaces_the_first_verdict_and_leaves_nothing_pending(
    bank: MemoryBank, said: dict[str, Any], breaks: bool, run_id: str
) -> None:
    task, rollout = "Open it.", [{"action": "4711", "observation": "It opens."}]
    made = program(failing("memory_items", int(breaks), lm15.ServerError("down")))
    other = program().learn("Open another.", rollout, bank)
    with pytest.raises(InfrastructureError) if breaks else nullcontext():
        made.learn(task, rollout, bank, run_id=run_id)
    first = [each.id for each in bank.experiences()][1:]
    for _ in range(2):
        corrected = made.learn(task, rollout, bank, run_id=run_id, **said)
    assert bank.pending() == []
    assert [each.id for each in bank.experiences()] == [other.id, corrected.id]
    assert (corrected.verdicts[0].label, corrected.trajectories[0].feedback) == ("failure", said.get("feedback", ""))
    assert [source.experience_id for item in corrected.items for source in item.provenances][-1] == corrected.id
    assert [bank.history(id)[-1].kind for id in first] == ([] if breaks else ["delete"])
    assert made.learn(task, rollout, bank, run_id=run_id) == corrected
    back = made.learn(task, rollout, bank, run_id=run_id, outcome=1.0)
    again = made.learn(task, rollout, bank, run_id=run_id, **said)
    assert [each.verdicts[0].label for each in (back, again)] == ["success", "failure"]
    assert bank.experiences() == [other, again]
    assert bank.doctor() == []


def test_a_correction_that_fails_waits_and_then_replaces(bank: MemoryBank) -> None:
    good, down = program(), program(failing("memory_items", 9, lm15.ServerError("down")))
    first = good.learn("Open it.", STEPS, bank)
    with pytest.raises(InfrastructureError):
        down.learn("Open it.", STEPS, bank, verdict="success")
    assert bank.experiences() == [first]
    done = good.resume(*bank.pending())
    assert (bank.experiences(), bank.pending(), done.verdict.label) == ([done.experience], [], "success")


@pytest.mark.parametrize("run_id", ["", "r"])
@pytest.mark.parametrize("learned", [False, True], ids=["first", "correction"])
def test_a_stated_verdict_and_what_was_learned_outlast_answers_that_cannot_be_parsed(
    bank: MemoryBank, learned: bool, run_id: str
) -> None:
    bad = program(failing("memory_items", 99, "no answer that can be parsed"))
    stated = {"run_id": run_id, "verdict": "failure", "feedback": "Right is Q-7."}
    before = [program().learn("Open it.", STEPS, bank, run_id=run_id)] if learned else []
    for _ in range(4 if learned else 2):
        with pytest.raises(UnparseableOutput):
            bad.learn("Open it.", STEPS, bank, **stated)
        assert bank.experiences() == before
    last = (program() if learned else bad).learn("Open it.", STEPS, bank, **stated)
    assert (last.verdicts[0].label, last.trajectories[0].feedback) == ("failure", "Right is Q-7.")
    assert (bank.experiences(), bank.pending(), bool(last.items)) == ([last], [], learned)


@pytest.mark.parametrize("run_id", ["", "r"])
def test_corrections_keep_a_lesson_that_was_edited_until_it_is_deleted(bank: MemoryBank, run_id: str) -> None:
    made = program()
    (item,) = made.learn("Open it.", STEPS, bank, run_id=run_id).items
    edited = bank.edit(item.id, content="The owner knows the code.")
    for verdict in ("success", "failure", "success"):
        corrected = made.learn("Open it.", STEPS, bank, run_id=run_id, verdict=verdict)
        assert [each.content for each in bank.items()].count(edited.content) == 1
        assert edited.id in {each.id for each in corrected.items}
        assert item.id not in {each.id for each in bank.items()}
        assert edited.id in {hit.id for found in bank.retrieve("Open it.") for hit in found.items}
    bank.delete(edited.id)
    made.learn("Open it.", STEPS, bank, run_id=run_id, verdict="failure")
    assert edited.id not in {each.id for each in bank.items()}
    assert bank.doctor() == []


@pytest.mark.parametrize("held", [False, True], ids=["while learning", "held pending"])
@pytest.mark.parametrize(
    "remove",
    [
        lambda bank: bank.rollback("run:r"),
        lambda bank: bank.delete(bank.pending()[0].id),
        lambda bank: bank.purge(text="stays shut"),
        lambda bank: program().learn("Open it.", STEPS, bank, run_id="r", feedback="NEW"),
    ],
    ids=["rollback", "delete", "purge", "correction"],
)
def test_what_is_removed_or_corrected_in_the_meantime_is_not_stored(
    bank: MemoryBank, remove: Callable[[MemoryBank], object], held: bool
) -> None:
    def script(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            if held and not waiting:
                raise lm15.ServerError("down")
            if not held:
                remove(bank)
        return locksmith(prompt)

    waiting: list[Pending] = []
    made = program(script)
    with pytest.raises(InfrastructureError if held else InputError, match=r"down|removed or corrected"):
        made.learn("Open it.", STEPS, bank, run_id="r", feedback="OLD")
    if held:
        waiting = bank.pending()
        remove(bank)
        with pytest.raises(InputError, match="removed or corrected"):
            made.resume(*waiting)
    assert {each.trajectories[0].feedback for each in bank.experiences()} <= {"NEW"}
    assert bank.pending() == []


def test_feedback_that_arrives_while_learning_is_learned_from_after_it(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            with pytest.raises(InfrastructureError):
                program(failing("memory_items", 1, lm15.ServerError("down"))).learn(
                    "Open it.", STEPS, bank, feedback="F"
                )
        return locksmith(prompt)

    program(script).learn("Open it.", STEPS, bank)
    done = program().resume(*bank.pending())
    assert [each.trajectories[0].feedback for each in bank.experiences()] == [done.trajectory.feedback] == ["F"]


def test_a_verdict_on_another_rollout_of_a_run_is_refused(bank: MemoryBank) -> None:
    made = program()
    first = made(task=TASK, bank=bank, run_id="r")
    with pytest.raises(InputError, match="another rollout"):
        made.learn(TASK, [{"action": "9", "observation": "No."}], bank, run_id="r", outcome=1.0)
    corrected = made.learn(TASK, first.trajectory, bank, run_id="r", outcome=1.0)
    assert bank.experience_of(TASK.id, "r") == corrected == bank.known(TASK, run_id="r")
    assert bank.learned("r") == {TASK.id}


def test_the_third_answer_that_cannot_be_parsed_ends_the_tries_of_that_rollout_only(bank: MemoryBank) -> None:
    other = Trajectory(task_id=TASK.id, steps=(Step(action="1", observation="No."),))
    bank.record(TASK, other)
    made = program(failing("label", 99, "no answer that can be parsed"))
    for _ in range(2):
        with pytest.raises(UnparseableOutput):
            made.learn(TASK, STEPS, bank)
    experience = made.learn(TASK, STEPS, bank)
    assert (experience.verdicts[0].label, experience.items) == ("unknown", ())
    assert [(each.trajectories, each.tries) for each in bank.pending()] == [((other,), 0)]


@pytest.mark.parametrize(
    ("known", "label"),
    [
        *(({"outcome": 1.0}, "success"), ({"outcome": 0.5}, "success"), ({"outcome": 0.49}, "failure")),
        *(({"outcome": np.float32(1)}, "success"), ({"outcome": np.int64(0)}, "failure")),
        *(({"outcome": 0}, "failure"), ({"verdict": "success"}, "success"), ({"verdict": "failure"}, "failure")),
    ],
)
def test_a_known_outcome_costs_no_judge_call(bank: MemoryBank, known: dict[str, Any], label: str) -> None:
    made = program()
    experience = made.learn("Open it.", STEPS, bank, **known)
    assert experience.verdicts[0].label == label
    assert asked(made, "label") == []


def test_feedback_reaches_the_distiller_and_survives_a_failure(bank: MemoryBank) -> None:
    made = program(failing("memory_items", 1, lm15.ServerError("down")))
    with pytest.raises(InfrastructureError):
        made.learn("Open it.", STEPS, bank, verdict="failure", feedback="The code is on the back.")
    done = made.resume(*bank.pending())
    assert done.verdict.label == "failure"
    assert asked(made, "memory_items")[-1]["feedback"] == "The code is on the back."
    assert asked(made, "label") == []


@pytest.mark.parametrize(
    "arguments",
    [
        *({"outcome": 1.5}, {"outcome": -0.1}, {"outcome": "0.5"}, {"verdict": "maybe"}, {"feedback": 3}),
        *({"outcome": 1.0, "verdict": "success"}, {"outcome": float("nan")}, {"outcome": [1.0]}),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(bank: MemoryBank, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        program().learn("Open it.", STEPS, bank, **arguments)


def test_a_model_in_the_place_of_the_config_is_refused() -> None:
    with pytest.raises(ConfigError, match="backbones"):
        ReasoningBank("openai/gpt-4o-mini")  # type: ignore[arg-type]


def test_inputs_that_cannot_be_used_are_refused_before_anything_is_paid_for(bank: MemoryBank) -> None:
    made = program()
    for call in (made.recall, made):
        with pytest.raises(InvalidTask):
            call(task=7, bank=bank)
        with pytest.raises(InputError):
            call(task=TASK, bank="lessons.sqlite")
    for nothing in ("", 7, [], [{"thought": "no action"}], {"steps": "x"}, [{"role": "user", "content": "only me"}]):
        with pytest.raises(InvalidTrajectory):
            made.learn("Open it.", nothing, bank)
    with pytest.raises(InputError):
        made.learn("Open it.", STEPS, bank, memory="a block")
    with pytest.raises(InputError):
        made(task=TASK, bank=bank, run_id=7)
    with pytest.raises(InvalidTrajectory):
        made.learn(TASK, Trajectory(task_id="another"), bank)
    assert made.backbones.lm("agent").engine.prompts == bank.experiences() == bank.pending() == []


# Settings


def test_a_similarity_floor_keeps_unrelated_lessons_out(bank: MemoryBank) -> None:
    made = program()
    made.learn("Open the lock of abus.", STEPS, bank)
    unrelated = "How long do I boil eggs?"
    made.retrieve.config = RetrieveConfig(min_score=0.95)
    assert not made.recall(unrelated, bank)
    made.retrieve.config = RetrieveConfig(min_score=-1.0)
    assert made.recall(unrelated, bank)


def test_lessons_far_below_the_best_one_are_not_shown(bank: MemoryBank) -> None:
    for title in ("Lock of abus", "Lock of yale", "Eggs"):
        bank.add(title, {"Eggs": "Boil them for ten minutes."}.get(title, f"The code of the {title.lower()} is 42."))

    def shown(share: float) -> list[str]:
        config = ProgramConfig(retrieve=RetrieveConfig(min_score=-1.0, min_share=share))
        return [item.title for item in program(config=config).recall("The code of the lock of abus", bank).items]

    scores = [each.score for each in bank.retrieve("The code of the lock of abus", 3, unit="item")]
    share = scores[1] / scores[0]
    assert scores[2] < scores[1] < scores[0]
    assert [shown(each) for each in (0.0, share, share + 0.01)] == [
        ["Lock of abus", "Lock of yale", "Eggs"],
        ["Lock of abus", "Lock of yale"],
        ["Lock of abus"],
    ]


def test_the_best_lesson_is_shown_even_if_its_score_is_negative(bank: MemoryBank) -> None:
    bank.add("Opposite", "-")
    vector = bank.embedder.embed(["Opposite\n-"])[0]
    opposite = next(text for text in map(str, range(1000)) if bank.embedder.embed([text])[0] @ vector < -0.05)
    config = ProgramConfig(retrieve=RetrieveConfig(min_score=-1.0))
    assert len(program(config=config).recall(opposite, bank).items) == 1


def test_lessons_are_shown_while_they_fit_the_budget(bank: MemoryBank) -> None:
    for number in range(4):
        bank.add(f"Lock number {number}", "Turn the key twice. " * 10)
    shown = [
        program(config=ProgramConfig(retrieve=RetrieveConfig(min_score=-1.0, max_tokens=tokens))).recall(
            "A lock.", bank
        )
        for tokens in (10, 150, 1500)
    ]
    assert [len(memory.items) for memory in shown] == [0, 2, 4]
    assert shown[1].block.count("Lock number") == 2


def test_a_reranker_chooses_among_candidates_and_must_return_them(bank: MemoryBank) -> None:
    made = program()
    for number in range(4):
        made.learn(f"Open lock number {number}.", [{"action": str(number), "observation": "It opens."}], bank)
    seen: list[int] = []

    def last_first(query: str, retrieved: list[Retrieved]) -> list[Retrieved]:
        seen.append(len(retrieved))
        return retrieved[::-1]

    config = ProgramConfig(retrieve=RetrieveConfig(k=1, min_score=-1.0))
    plain, reranked = program(config=config), program(config=config, reranker=last_first)
    assert reranked.recall("Open a lock.", bank).items != plain.recall("Open a lock.", bank).items
    assert seen[0] > 1
    for bad in (lambda query, retrieved: [1], lambda query, retrieved: 1 / 0):
        with pytest.raises(InfrastructureError):
            program(config=config, reranker=bad).recall("Open a lock.", bank)


def test_where_texts_come_from_is_stored_and_outlasts_a_failure(bank: MemoryBank) -> None:
    made = program()
    assert made(task=TASK, bank=bank).experience.origin == "env:lock"
    assert made(task=TASK, bank=bank, origin="mail:ann").experience.origin == "mail:ann"
    assert made.learn("Open it.", STEPS, bank).origin == "caller"
    assert made.learn("Open that.", STEPS, bank, origin="mail:bo", outcome=0.7).origin == "mail:bo"
    with pytest.raises(UnparseableOutput):
        program(failing("memory_items", 99, "no answer"))(task=TASK, bank=bank, origin="mail:cy")
    (waiting,) = bank.pending()
    assert waiting.origin == made.resume(waiting).experience.origin == "mail:cy"
    assert {each.origin: each.reward for each in bank.experiences()} == {
        "env:lock": None,
        "mail:ann": None,
        "caller": None,
        "mail:bo": 0.7,
        "mail:cy": None,
    }


def test_a_redactor_is_between_the_agent_and_what_is_learned(bank: MemoryBank) -> None:
    made = program(redactor=lambda text: text.replace("0000", "(code)"))
    done = made(task=TASK, bank=bank)
    assert done.answer == "0000"
    assert done.trajectory.steps[0].action == done.experience.trajectories[0].steps[0].action == "(code)"
    assert "0000" not in "".join(prompt.text for prompt in asked(made, "label") + asked(made, "memory_items"))
