"""The loop: retrieve, act, judge, distil, append."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.config import AdaptiveConfig, DistillConfig, MattsConfig, ProgramConfig, RetrieveConfig
from rb_dspy.errors import BackboneError, ConfigError, InfrastructureError, InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import MemoryDraft, Outcome, Retrieved, Step, Task, Trajectory, Verdict
from rb_dspy.steps import as_task
from rb_dspy.stream import run_stream
from rb_dspy.testing import Answer, Corridor, Lock, Prompt, Reply, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.worlds import answers, backbones, corridor, item, lock, prompts


def program(bones: Backbones | None = None, **kwargs: object) -> ReasoningBank:
    return ReasoningBank(backbones=bones or backbones(), environments=_environments, **kwargs)  # type: ignore[arg-type]


def _environments(task: Task, rollout_id: str) -> Corridor | Lock:
    made: Corridor | Lock = (Corridor if task.env == "corridor" else Lock).make(task, rollout_id)
    return made


def test_one_task_gives_everything_that_happened(bank: MemoryBank) -> None:
    done = program()(task=corridor(), bank=bank)

    assert isinstance(done, dspy.Prediction)
    assert [step.action for step in done.trajectory.steps] == ["forward"] * 3
    assert done.trajectory.stop_reason == "done"
    assert done.verdict.label == "success"
    assert [i.title for i in done.memory_items] == ["Use what worked"]
    assert done.experience.items == done.memory_items
    assert bank.get(done.experience.id) == done.experience
    assert done.usage["agent"].calls == 3
    assert done.usage["judge"].calls == 1
    assert done.usage["distiller"].calls == 1


def test_a_lesson_from_one_task_is_used_on_the_next(bank: MemoryBank) -> None:
    """A scripted world: this shows that the plumbing carries a lesson, not that memory helps a real model."""
    run = program()
    first = Trajectory.model_validate(
        {"task_id": "lock/Abus/0", "steps": [{"action": "4711", "observation": "It opens."}], "answer": "4711"}
    )
    run.learn(lock("Abus", 0), first, bank)

    done = run(task=lock("Abus", 1), bank=bank)

    assert done.answer == "4711"
    assert done.verdict.label == "success"
    assert [i.id for i in done.memory.items] == [i.id for i in bank.items()][:1]


def test_a_task_never_gets_what_was_learned_from_itself(bank: MemoryBank) -> None:
    run = program()
    run(task=lock("Abus", 1), bank=bank)
    again = run(task=lock("Abus", 1), bank=bank, run_id="second")
    assert not again.memory
    assert run.recall(lock("Abus", 2), bank)


CHARGED = "I was charged twice. Refund me."
REFUNDED = [{"role": "user", "content": CHARGED}, {"role": "assistant", "content": "Refunded one of the two."}]


def on_questions(kind: str, **kwargs: Any) -> ReasoningBank | MaTTS:
    made = ReasoningBank(backbones=backbones(), **kwargs)
    return made if kind == "ReasoningBank" else MaTTS(made, k=2)


def test_a_task_is_shown_a_lesson_that_another_gave_first_though_it_gave_it_once_more(bank: MemoryBank) -> None:
    run = program()
    first, second, third = (lock("Abus", number) for number in (1, 2, 3))
    assert not run(task=first, bank=bank, run_id="on").memory
    (learned,) = bank.items()
    for task in (second, third):
        assert [item.id for item in run(task=task, bank=bank, run_id="on").memory.items] == [learned.id]
    assert {source.task_id for source in bank.get(learned.id).provenances} == {first.id, second.id, third.id}
    assert not run.recall(first, bank), "it would be shown what came of it, by way of others"
    assert [item.id for item in run.recall(second, bank).items] == [learned.id]
    assert [item.id for item in run.recall(third, bank).items] == [learned.id]
    bank.delete(bank.experiences()[0].id)
    assert not run.recall(second, bank), "now it is the first"
    assert [item.id for item in run.recall(third, bank).items] == [learned.id]


def _told_on_failure(prompt: Prompt) -> Reply:
    """As ``answers``, but a lock that stayed shut teaches its code, too."""
    if "memory_items" in prompt.wants:
        return {"analysis": "Hm.", "memory_items": [item("Use the code", "For these locks the code is 4711.")]}
    return answers(prompt)


def test_memory_as_it_is_is_worth_on_the_same_tasks_what_it_was_worth_when_it_was_learned(bank: MemoryBank) -> None:
    tasks = [lock("Abus", number) for number in range(5)]
    runs = {
        name: run_stream(
            program(backbones(_told_on_failure), config=ProgramConfig(retrieve=RetrieveConfig(k=k))),
            tasks,
            bank,
            run_id=name,
            learn=name == "on",
        )
        for name, k in (("on", 1), ("frozen", 1), ("off", 0))
    }
    numbers = {name: (report.summary().solved, report.summary().shown) for name, report in runs.items()}
    assert numbers == {"on": (4, 4), "frozen": (4, 4), "off": (0, 0)}


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_a_text_is_a_task(kind: str, bank: MemoryBank) -> None:
    run = on_questions(kind)
    done = run(task=CHARGED, bank=bank)
    assert done.experience.task == as_task(CHARGED)
    assert (await run.acall(task=CHARGED, bank=bank, run_id="again")).experience.task == as_task(CHARGED)


async def test_a_text_that_comes_again_is_shown_what_it_taught(bank: MemoryBank) -> None:
    run = on_questions("ReasoningBank")
    assert isinstance(run, ReasoningBank)
    learned = run.learn(CHARGED, REFUNDED, bank)
    assert run.recall(CHARGED, bank).items == learned.items != ()
    assert (await run.arecall(CHARGED, bank)).items == learned.items
    assert run(task=CHARGED, bank=bank).memory.items == learned.items
    assert on_questions("MaTTS")(task=CHARGED, bank=bank, run_id="other").memory.items
    assert (await on_questions("MaTTS").acall(task=CHARGED, bank=bank, run_id="third")).memory.items
    named = Task(id="ticket/1", instruction=CHARGED)
    assert run.learn(named, REFUNDED, bank, run_id="named").task == named
    assert {match.task_id for match in run.recall(named, bank).retrieved} == {as_task(CHARGED).id}


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_a_task_is_not_shown_its_own_lesson_though_its_id_be_that_of_a_text(kind: str, bank: MemoryBank) -> None:
    """Such are the tasks that were taken out of a bank: who measures with them must not measure an echo."""
    run, known = on_questions(kind), as_task(CHARGED)
    on_questions("ReasoningBank")(task=CHARGED, bank=bank)
    assert run(task=known, bank=bank, run_id="again").memory.items == ()
    assert (await run.acall(task=known, bank=bank, run_id="third")).memory.items == ()
    if isinstance(run, ReasoningBank):
        assert run.recall(known, bank).items == (await run.arecall(known, bank)).items == ()
        assert run.recall(CHARGED, bank).items != ()


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize(
    "given", [{"task": 7}, {"task": {"instruction": "x"}}, {"bank": "lessons.sqlite"}, {"bank": None}]
)
async def test_what_is_no_task_or_no_bank_is_said_in_one_line(
    kind: str, given: dict[str, Any], bank: MemoryBank
) -> None:
    run = on_questions(kind)
    (name,) = given
    wrong = type(given[name]).__name__
    given = {"task": CHARGED, "bank": bank, **given}
    calls: list[Any] = [lambda: run(**given), lambda: run.acall(**given)]
    if isinstance(run, ReasoningBank):
        task, other = given["task"], given["bank"]
        calls += [lambda: run.recall(task, other), lambda: run.arecall(task, other)]
        calls += [lambda: run.learn(task, REFUNDED, other), lambda: run.alearn(task, REFUNDED, other)]

    async def made(call: Any) -> None:
        done = call()
        if inspect.isawaitable(done):
            await done

    for call in calls:
        with pytest.raises(InputError, match=rf"^got {wrong} for a {name}; expected a [^\n]+$"):
            await made(call)
    assert len(bank) == 0


async def test_memory_is_what_recall_gave_and_not_its_text(bank: MemoryBank) -> None:
    run = on_questions("ReasoningBank")
    assert isinstance(run, ReasoningBank)
    block: Any = run.recall(CHARGED, bank).block
    with pytest.raises(InputError, match=r"got str for memory; expected what recall gave, whole: not its \.block"):
        run.learn(CHARGED, REFUNDED, bank, memory=block)
    with pytest.raises(InputError, match="got str for memory"):
        await run.alearn(CHARGED, REFUNDED, bank, memory=block)
    assert bank.experiences() == []


def test_failure_and_success_go_to_different_prompts(bank: MemoryBank) -> None:
    bones = backbones()
    run = program(bones)
    run(task=corridor(), bank=bank)
    run(task=lock("Abus", 1), bank=bank)
    asked = [p.system for p in prompts(bones) if "memory_items" in p.wants]
    assert len(asked) == 2
    assert signatures.DistillSuccess.instructions.split()[0] != signatures.DistillFailure.instructions.split()[0]
    assert "Successful work is in front of you" in asked[0]
    assert "A failed attempt is in front of you" in asked[1]


def test_the_judges_reasons_reach_the_distiller(bank: MemoryBank) -> None:
    bones = backbones()
    program(bones)(task=corridor(), bank=bank)
    (asked,) = [p for p in prompts(bones) if "memory_items" in p.wants]
    assert asked["judge_reasons"] == "The last observation shows it."


class _Tells(Lock):
    """Its ground truth carries words that nobody but the scorer may read."""

    def outcome(self) -> Outcome:
        return Outcome(reward=0.731, success=True, info={"truth": "canary-outcome"})


def test_agent_judge_and_distiller_never_see_ground_truth(bank: MemoryBank) -> None:
    bones = backbones()
    task = Task(
        id="secret/1",
        instruction="Open the lock.",
        env_args={"code": "canary-code", "answer": "canary-answer"},
        template="canary-template",
        domain="canary-domain",
    )
    asked_for_truth = []

    class Watched(_Tells):
        def outcome(self) -> Outcome:
            asked_for_truth.append(threading.get_ident())
            return super().outcome()

    run = ReasoningBank(backbones=bones, environments=lambda task, rollout: Watched("canary-code"))
    run(task=task, bank=bank)

    everything = "\n".join(p.text for p in prompts(bones))
    assert len(prompts(bones)) == 3
    assert "canary" not in everything
    assert "0.731" not in everything
    assert not asked_for_truth


def test_messages_only_grow_at_the_end_and_task_and_memory_stand_once(bank: MemoryBank) -> None:
    bones = backbones()
    run = program(bones)
    run(task=corridor("corridor/0"), bank=bank)
    run(task=corridor("corridor/1", length=4), bank=bank)

    turns = [p for p in prompts(bones) if "action" in p.wants and "corridor/1" in p.text]
    assert len(turns) == 4
    for before, after in itertools.pairwise(turns):
        assert after.system == before.system
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) == len(before.messages) + 2
    last = turns[-1]
    assert last.text.count("Walk through the corridor called corridor/1.") == 1
    assert last.text.count("Keep going until you are through.") == 1


@pytest.mark.parametrize(
    "mess",
    [
        "no idea",
        "[[ ## label ## ]]\nperhaps",
        '{"reasons": "x"}',
        "[[ ## reasons ## ]]\nx\n[[ ## label ## ]]\nunsuccessful",
    ],
)
def test_a_judge_that_cannot_be_understood_gives_unknown_and_nothing_is_distilled(bank: MemoryBank, mess: str) -> None:
    def script(prompt: Prompt) -> Reply:
        return mess if "label" in prompt.wants else answers(prompt)

    bones = backbones(script)
    done = program(bones)(task=corridor(), bank=bank)

    assert done.verdict.label == "unknown"
    assert done.memory_items == ()
    assert len(done.experience.trajectories[0].steps) == 3
    assert bank.get(done.experience.id) == done.experience
    assert sum("label" in p.wants for p in prompts(bones)) == 2  # one repair, not more
    assert not any("memory_items" in p.wants for p in prompts(bones))


def test_a_judge_that_gives_no_text_is_down_and_the_rollout_waits(bank: MemoryBank) -> None:
    empty = backbones(lambda prompt: "" if "label" in prompt.wants else answers(prompt))
    with pytest.raises(InfrastructureError, match="the judge's language model gave no text, twice"):
        program(empty)(task=corridor(), bank=bank)
    (ingest,) = bank.pending()
    assert program(backbones(answers)).resume(ingest).verdict.label == "success"


def _learns_nothing(make: Callable[[ReasoningBank], Any], bank: MemoryBank) -> None:
    bones = backbones(answers)
    run = make(program(bones))
    run(task=corridor("corridor/1"), bank=bank)
    bank.snapshot("then")
    asked, held, before = len(prompts(bones)), len(bank), bank.seen_tasks()
    done = run(task=corridor("corridor/2"), bank=bank, learn=False)
    assert done.memory.items, "it is shown what there is"
    assert (done.verdict, done.experience, done.memory_items) == (None, None, ())
    assert (len(bank), bank.seen_tasks(), bank.pending()) == (held, before, [])
    new = [prompt.wants[-1] for prompt in prompts(bones)[asked:]]
    assert new
    assert set(new) <= {"action", "choice"}
    assert done.answer == run(task=corridor("corridor/2"), bank=bank, learn=False).answer


@pytest.mark.parametrize("mode", [None, "parallel", "sequential", "vanilla", "best_of_n"])
def test_without_learning_it_only_retrieves_and_acts(bank: MemoryBank, mode: Any) -> None:
    if mode == "sequential":
        asked = backbones(answers)
        done = MaTTS(program(asked), k=1, mode=mode)(task=corridor(), bank=bank, learn=False)
        assert (done.verdict, done.experience, len(bank.experiences())) == (None, None, 0)
        return
    _learns_nothing(lambda run: run if mode is None else MaTTS(run, k=2, mode=mode), bank)


async def _never(task: Task, rollout: Trajectory) -> Verdict:
    raise AssertionError("nobody is judged")


@pytest.mark.parametrize("scale", [False, True])
def test_without_learning_no_judge_is_asked_and_an_async_one_will_do(bank: MemoryBank, scale: bool) -> None:
    alone = program(backbones(answers), judge=_never)
    run = MaTTS(alone, k=2) if scale else alone
    assert run(task=corridor(), bank=bank, learn=False).verdict is None
    with pytest.raises(ConfigError, match="the judge is async"):
        run(task=corridor(), bank=bank)


def test_a_judge_that_is_down_costs_no_answer_where_only_waves_waited_for_it(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    config = MattsConfig(adaptive=AdaptiveConfig(enabled=True, first=2))
    done = MaTTS(program(backbones(script)), k=2, config=config)(task=corridor(), bank=bank, learn=False)
    assert [verdict.label for verdict in done.verdicts] == ["unknown", "unknown"]
    bones = backbones(answers)
    MaTTS(program(bones), k=1, config=config)(task=corridor(), bank=bank, learn=False)
    assert not any("label" in prompt.wants for prompt in prompts(bones))


def _speechless(after: int = 0) -> dspy.LM:
    """Says something in the first ``after`` turns, then thinks until its budget is spent."""

    def script(prompt: Prompt) -> Reply:
        return answers(prompt) if prompt.turns < after else Answer(thought="Hm, hm.", finish="length")

    return scripted_lm(script)  # type: ignore[no-any-return]


def test_what_a_model_thinks_without_saying_it_is_no_answer(bank: MemoryBank) -> None:
    agent = scripted_lm(answers)
    with pytest.raises(InfrastructureError, match="the judge's language model gave no text, twice"):
        program(Backbones(agent=agent, judge=_speechless()))(task=corridor(), bank=bank)
    assert len(bank.pending()) == 1
    with pytest.raises(InfrastructureError, match="the agent's language model gave no text, twice"):
        program(Backbones(agent=_speechless(), judge=agent))(task=corridor("corridor/2"), bank=bank)
    begun = program(Backbones(agent=_speechless(after=1), judge=agent, distiller=agent))
    done = begun(task=corridor("corridor/3"), bank=bank)
    assert (done.trajectory.stop_reason, len(done.trajectory.steps)) == ("unreadable", 1)


async def test_without_learning_a_bank_that_refuses_to_be_written_will_do(tmp_path: Path) -> None:
    bones = backbones(answers)
    with MemoryBank.open(tmp_path / "b.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        program(bones)(task=corridor("corridor/1"), bank=bank)
        bank.snapshot("then")
    with MemoryBank.open(tmp_path / "b.sqlite", scope="s", embedder=HashEmbedder(), at="then") as frozen:
        done = await program(bones).acall(task=corridor("corridor/2"), bank=frozen, learn=False)
        assert done.memory.items
        assert len(done.trajectory.steps) == 3


def test_an_embedder_that_is_down_when_lessons_are_appended_costs_the_task(bank: MemoryBank) -> None:
    def down(texts: Any) -> Any:
        raise ConnectionError("connection refused")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HashEmbedder, "embed", lambda self, texts: down(texts))
        with pytest.raises(InfrastructureError, match="appending broke: ConnectionError: connection refused"):
            program(backbones(answers))(task=corridor(), bank=bank)
    (ingest,) = bank.pending()
    assert ingest.state.stage == "distilled"
    assert program(backbones(answers)).resume(ingest).memory_items


def test_one_repair_is_enough_for_a_judge_that_can_only_write_json(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and "JSON object" not in prompt.system:
            return "success, I would say"
        return answers(prompt)

    assert program(backbones(script))(task=corridor(), bank=bank).verdict.label == "success"


def test_a_distiller_that_cannot_be_understood_loses_no_trajectory(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        return "- lesson: be good" if "memory_items" in prompt.wants else answers(prompt)

    done = program(backbones(script))(task=corridor(), bank=bank)
    assert done.verdict.label == "success"
    assert done.memory_items == ()
    assert "could not be read" in done.experience.note


def test_overlapping_literal_and_surplus_drafts_are_dropped_and_named(bank: MemoryBank) -> None:
    drafts = [
        item("Go on", "Keep going until you are through."),
        item("go on", "Something else entirely."),
        item("Almost the same", "Keep going until you are through"),
        item("Quotes", "The number 123,456 matters."),
        item("Second", "Look at the list of actions first."),
        item("Third", "Stop when nothing changes."),
        item("Fourth", "One too many."),
        item("", "No title."),
        item("Long", "x" * 100_000),
    ]

    def script(prompt: Prompt) -> Reply:
        return {"analysis": "x", "memory_items": drafts} if "memory_items" in prompt.wants else answers(prompt)

    task = corridor().model_copy(update={"instruction": "Walk 123,456 steps."})
    config = ProgramConfig(distill=DistillConfig(max_items=3))
    done = program(backbones(script), config=config)(task=task, bank=bank)
    assert [i.title for i in done.memory_items] == ["Go on", "Second", "Third"]
    for reason in ("overlaps", "quotes this task (123,456)", "beyond the limit", "without title"):
        assert reason in done.experience.note


def test_infrastructure_errors_are_not_failures(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with pytest.raises(InfrastructureError, match="overloaded"):
        program(backbones(script))(task=corridor(), bank=bank)
    assert list(bank.experiences()) == []


def test_a_rollout_is_kept_when_the_judge_breaks(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    with pytest.raises(InfrastructureError):
        program(backbones(script))(task=corridor(), bank=bank)
    (kept,) = bank.pending()
    assert kept.verdicts is None
    assert len(kept.state.trajectories[0].steps) == 3
    assert "overloaded" in kept.state.error


def test_learning_can_be_tried_again_after_the_judge_broke(bank: MemoryBank) -> None:
    working = []

    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants and not working:
            raise lm15.ServerError("overloaded")
        return answers(prompt)

    run = program(backbones(script))
    steps = [{"action": "forward", "observation": "You are through."}]
    with pytest.raises(InfrastructureError):
        run.learn("Walk.", steps, bank)
    working.append(True)
    assert run.learn("Walk.", steps, bank).items


def test_a_refused_key_ends_the_run(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    with pytest.raises(BackboneError, match="bad key"):
        program(backbones(script))(task=corridor(), bank=bank)


def test_a_model_that_the_server_does_not_have_ends_the_run(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.InvalidRequestError("nope", status=404)

    with pytest.raises(
        BackboneError, match="has no model 'lm', or nothing is at this address: check its name, and api_base"
    ):
        program(backbones(script))(task=corridor(), bank=bank)


def test_a_broken_environment_is_an_infrastructure_error(bank: MemoryBank) -> None:
    class Broken(Corridor):
        def step(self, action: str) -> tuple[str, bool]:
            raise OSError("the game server is gone")

    run = ReasoningBank(backbones=backbones(), environments=lambda task, rollout: Broken())
    with pytest.raises(InfrastructureError, match="the game server is gone"):
        run(task=corridor(), bank=bank)


def test_a_full_context_window_ends_the_rollout_not_the_task(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        if prompt.turns == 2:
            raise lm15.ContextLengthError("too long")
        return answers(prompt)

    done = program(backbones(script))(task=corridor(), bank=bank)
    assert done.trajectory.stop_reason == "context"
    assert len(done.trajectory.steps) == 2
    assert done.verdict.label == "failure"


def test_without_retrieval_nothing_is_shown(bank: MemoryBank) -> None:
    run = program(config=ProgramConfig(retrieve=RetrieveConfig(k=0)))
    run(task=lock("Abus", 1), bank=bank)
    assert not run(task=lock("Abus", 2), bank=bank).memory


def test_another_judge_can_take_the_llm_judges_place(bank: MemoryBank) -> None:
    run = program(judge=lambda task, trajectory: Verdict(label="failure", reasons="I said so."))
    assert run(task=corridor(), bank=bank).verdict.reasons == "I said so."


async def _says_no(task: Task, trajectory: Trajectory) -> Verdict:
    await asyncio.sleep(0)
    return Verdict(label="failure", reasons=f"Not in {len(trajectory.steps)} steps.")


class _SaysNo:
    async def __call__(self, task: Task, trajectory: Trajectory) -> Verdict:
        return await _says_no(task, trajectory)


class _SaysNoModule(dspy.Module):
    async def aforward(self, task: Task, trajectory: Trajectory) -> Verdict:
        return await _says_no(task, trajectory)


ASYNC_JUDGES = {
    "function": _says_no,
    "object": _SaysNo(),
    "partial": partial(_says_no),
    "module": _SaysNoModule(),
    "lambda": lambda task, done: _says_no(task, done),
}


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize("judge", ASYNC_JUDGES.values(), ids=ASYNC_JUDGES)
async def test_an_async_judge_is_awaited(kind: str, judge: Any, bank: MemoryBank) -> None:
    run = on_questions(kind, judge=judge)
    assert (await run.acall(task=CHARGED, bank=bank)).verdict.reasons == "Not in 1 steps."
    if isinstance(run, ReasoningBank):
        learned = await run.alearn(CHARGED, [{"action": "x"}, {"action": "y"}], bank)
        assert learned.verdicts[0].reasons == "Not in 2 steps."


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize("judge", ASYNC_JUDGES.values(), ids=ASYNC_JUDGES)
def test_an_async_judge_is_refused_where_nobody_could_await_it(kind: str, judge: Any, bank: MemoryBank) -> None:
    """Before anything is paid for, where it says that it is one; else what was done waits."""
    bones = backbones()
    run: Any = ReasoningBank(backbones=bones, judge=judge)
    run = run if kind == "ReasoningBank" else MaTTS(run, k=2)
    said = r"^the judge is async: await acall, alearn or aresume instead of this call, or give a plain function$"
    with pytest.raises(ConfigError, match=said):
        run(task=CHARGED, bank=bank)
    gc.collect()  # whoever was not awaited would warn now
    late = judge is ASYNC_JUDGES["lambda"]
    assert (bool(prompts(bones)), len(bank.pending())) == (late, late)
    if not late:
        with pytest.raises(ConfigError, match=said):
            run_stream(run, [Task(id="1", instruction="y"), Task(id="2", instruction="z")], bank, run_id="r")
        assert prompts(bones) == []
    if isinstance(run, ReasoningBank):  # what was done by others is kept all the same
        with pytest.raises(ConfigError, match=said):
            run.learn(CHARGED, REFUNDED, bank, run_id="theirs")
        assert [waits.state.run_id for waits in bank.pending()][late:] == ["theirs"]


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize("judge", ASYNC_JUDGES.values(), ids=ASYNC_JUDGES)
async def test_what_waits_for_an_async_judge_is_resumed(kind: str, judge: Any, bank: MemoryBank) -> None:
    async def away(task: Task, trajectory: Trajectory) -> Verdict:
        raise OSError("away")

    with pytest.raises(InfrastructureError, match="away"):
        await on_questions(kind, judge=away).acall(task=CHARGED, bank=bank)
    (waits,) = bank.pending()
    run = on_questions(kind, judge=judge)
    with pytest.raises(ConfigError, match="await acall, alearn or aresume"):
        run.resume(waits)
    done = await run.aresume(waits)
    assert {verdict.reasons for verdict in done.experience.verdicts} == {"Not in 1 steps."}
    assert done.experience.trajectories == waits.state.trajectories
    assert len(waits.state.trajectories) == (1 if kind == "ReasoningBank" else 2)
    assert (bank.pending(), len(bank.experiences())) == ([], 1)


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_what_does_not_wait_cannot_be_resumed(kind: str, bank: MemoryBank) -> None:
    run: Any = on_questions(kind)
    waits = bank.ingest(as_task(CHARGED), Trajectory(task_id=as_task(CHARGED).id))
    for given in (waits.state.id, waits.state, None):
        said = rf"^got {type(given).__name__} for rollouts that wait; expected an Ingest: bank\.pending\(\) gives them$"
        with pytest.raises(InputError, match=said):
            run.resume(given)
        with pytest.raises(InputError, match=said):
            await run.aresume(given)
    assert run.resume(waits).experience.task == as_task(CHARGED)


@pytest.mark.parametrize("judge", ["openai/x", "", _SaysNo, 7], ids=str)
def test_what_is_no_judge_is_refused_when_the_program_is_made(judge: Any) -> None:
    given = "the class _SaysNo" if judge is _SaysNo else repr(judge)
    with pytest.raises(ConfigError, match=rf"^got {given} for a judge; expected a function [^\n]+$"):
        ReasoningBank(judge=judge)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("end", ["done", "unreadable"])
def test_a_rollout_whose_closing_is_interrupted_is_kept(bank: MemoryBank, asynchronous: bool, end: str) -> None:
    class Stuck(Corridor):
        def close(self) -> None:
            closed.append(self.position)
            raise KeyboardInterrupt

    closed: list[int] = []
    bones = backbones(_twice_then_junk if end == "unreadable" else answers)
    run = ReasoningBank(backbones=bones, environments=lambda task, rollout: Stuck())
    given = {"task": corridor(), "bank": bank, "run_id": "night"}
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run.acall(**given)) if asynchronous else run(**given)
    assert closed == [3 if end == "done" else 2]
    (waits,) = bank.pending()
    (kept,) = waits.state.trajectories
    assert (len(kept.steps), kept.stop_reason, waits.state.run_id) == (closed[0], end, "night")
    assert kept.usage["agent"].calls >= closed[0]
    assert run.resume(waits).experience.trajectories == (kept,)


async def test_what_an_async_judge_raises_is_no_verdict(bank: MemoryBank) -> None:
    async def breaks(task: Task, trajectory: Trajectory) -> Verdict:
        raise OSError("away")

    async def says_nothing(task: Task, trajectory: Trajectory) -> None:
        pass

    for judge, said in ((breaks, "the judge broke: OSError: away"), (says_nothing, "the judge gave None")):
        with pytest.raises(InfrastructureError, match=said):
            await on_questions("ReasoningBank", judge=judge).acall(task=CHARGED, bank=bank)


async def _gives_up(task: Task, trajectory: Trajectory) -> Verdict:
    raise asyncio.CancelledError("by itself")


async def _waits_for_what_is_cancelled(task: Task, trajectory: Trajectory) -> Verdict:
    inner = asyncio.ensure_future(_says_no(task, trajectory))
    inner.cancel("by itself")
    return await inner


class _GivesUpModule(dspy.Module):
    async def aforward(self, task: Task, trajectory: Trajectory) -> Verdict:
        return await _gives_up(task, trajectory)


CANCELLED = {"raised": _gives_up, "awaited": _waits_for_what_is_cancelled, "module": _GivesUpModule()}


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
@pytest.mark.parametrize("judge", CANCELLED.values(), ids=CANCELLED)
async def test_what_is_cancelled_inside_an_async_judge_does_not_cancel_the_caller(
    kind: str, judge: Any, bank: MemoryBank
) -> None:
    run = on_questions(kind, judge=judge)
    said = "^the judge broke: CancelledError: "
    with pytest.raises(InfrastructureError, match=said):
        await run.acall(task=CHARGED, bank=bank)
    (waits,) = bank.pending()
    assert "the judge broke: CancelledError" in waits.state.error
    with pytest.raises(InfrastructureError, match=said):
        await run.aresume(waits)
    if isinstance(run, ReasoningBank):
        with pytest.raises(InfrastructureError, match=said):
            await run.alearn(CHARGED, REFUNDED, bank)


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_a_call_that_is_cancelled_while_an_async_judge_thinks_is_cancelled(kind: str, bank: MemoryBank) -> None:
    thinking = asyncio.Event()

    async def thinks(task: Task, trajectory: Trajectory) -> Verdict:
        thinking.set()
        await asyncio.sleep(30)
        raise AssertionError

    run = on_questions(kind, judge=thinks)
    job = asyncio.ensure_future(run.acall(task=CHARGED, bank=bank))
    await asyncio.wait_for(thinking.wait(), 5)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert job.cancelled()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.acall(task=CHARGED, bank=bank, run_id="late"), 0.2)
    assert len(bank.pending()) == 2


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_a_call_that_is_cancelled_before_an_async_judge_begins_leaves_nothing_unawaited(
    kind: str, bank: MemoryBank
) -> None:
    """The warning of a coroutine that nobody awaited would make this test red."""
    asked, go_on = threading.Event(), threading.Event()
    made: list[Coroutine[Any, Any, Verdict]] = []

    async def thinks() -> Verdict:
        raise AssertionError

    def judge(task: Task, trajectory: Trajectory) -> Coroutine[Any, Any, Verdict]:
        asked.set()
        assert go_on.wait(10)
        made.append(thinks())
        return made[-1]

    job = asyncio.ensure_future(on_questions(kind, judge=judge).acall(task=CHARGED, bank=bank))
    assert await asyncio.to_thread(asked.wait, 10)
    job.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await job
    assert made
    assert {inspect.getcoroutinestate(each) for each in made} == {inspect.CORO_CLOSED}


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
async def test_what_is_cancelled_inside_an_embedder_does_not_cancel_the_caller(kind: str) -> None:
    class GivesUp(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> Any:
            raise asyncio.CancelledError("by itself")

    run = on_questions(kind)
    said = "^embedder hash-64 broke: CancelledError: by itself$"
    with MemoryBank.open(None, scope="t", embedder=GivesUp()) as bank:
        with pytest.raises(InfrastructureError, match=said):
            await run.acall(task=CHARGED, bank=bank)
        with pytest.raises(InfrastructureError, match=said):
            run(task=CHARGED, bank=bank, run_id="again")
        assert len(bank.pending()) == 2


async def test_async_does_the_same(bank: MemoryBank) -> None:
    run = program()
    done = await run.acall(task=corridor(), bank=bank)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as other:
        same = run(task=corridor(), bank=other)
    assert done.trajectory.steps == same.trajectory.steps
    assert done.verdict == same.verdict
    assert [i.title for i in done.memory_items] == [i.title for i in same.memory_items]
    learned = await run.alearn(
        "Say hi", [{"role": "user", "content": "hi?"}, {"role": "assistant", "content": "hi"}], bank
    )
    assert learned.trajectories[0].answer == "hi"
    assert await run.arecall("Say hi again", bank)


def test_learn_reads_chat_messages_and_learning_twice_is_learning_once(bank: MemoryBank) -> None:
    run = program()
    messages = [
        {"role": "user", "content": "Open it."},
        {
            "role": "assistant",
            "content": "I try.",
            "tool_calls": [{"id": "c1", "function": {"name": "dial", "arguments": '{"code": "1"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "It opens."},
        {"role": "assistant", "content": "Done."},
    ]
    first = run.learn("Open the safe.", messages, bank)
    second = run.learn("Open the safe.", messages, bank)
    assert first == second
    assert len(list(bank.experiences())) == 1
    assert first.trajectories[0].steps[0].action == 'dial({"code": "1"})'


def test_the_program_copies_and_its_state_holds_prompts_only(bank: MemoryBank, tmp_path: Path) -> None:
    bones = Backbones(agent=scripted_lm(answers, model="scripted/secret-model"))
    run = program(bones)
    assert [name for name, _ in run.named_predictors()] == [
        "act.predict",
        "judge.predict",
        "distill.success",
        "distill.failure",
    ]
    copied = copy.deepcopy(run)
    copied.act.predict.signature = copied.act.predict.signature.with_instructions("Do as you like.")
    assert copied.backbones is bones
    assert run.act.predict.signature.instructions != "Do as you like."
    copied(task=corridor(), bank=bank)

    copied.save(tmp_path / "state.json")
    text = (tmp_path / "state.json").read_text()
    assert "secret-model" not in text
    assert "Do as you like." in text
    run.load(tmp_path / "state.json")
    assert run.act.predict.signature.instructions == "Do as you like."


def test_the_trace_holds_every_call(bank: MemoryBank) -> None:
    run = program()
    with dspy.context(trace=[]):
        run(task=corridor(), bank=bank)
        assert len(dspy.settings.trace) == 5


def test_usage_is_the_same_from_one_thread_and_from_four() -> None:
    run = program()

    def one(bank: MemoryBank, n: int) -> dict[str, tuple[int, int]]:
        used = run(task=corridor(f"corridor/{n:03}"), bank=bank).usage
        return {role: (u.calls, u.prompt_tokens) for role, u in used.items()}

    def with_threads(workers: int) -> list[dict[str, tuple[int, int]]]:
        banks = [MemoryBank.open(None, scope="t", embedder=HashEmbedder()) for _ in range(12)]
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(copy_context().run, one, bank, n) for n, bank in enumerate(banks)]
            return [job.result() for job in jobs]

    assert with_threads(1) == with_threads(4)


def _twice_then_junk(prompt: Prompt) -> Reply:
    return "I am lost." if "action" in prompt.wants and prompt.turns >= 2 else answers(prompt)


def test_an_agent_that_becomes_unreadable_ends_its_rollout_and_nothing_else(bank: MemoryBank) -> None:
    bones = backbones(_twice_then_junk)
    done = program(bones)(task=corridor(), bank=bank)
    assert done.trajectory.stop_reason == "unreadable"
    assert len(done.trajectory.steps) == 2
    assert done.verdict.label == "failure"
    (asked,) = [p for p in prompts(bones) if "label" in p.wants]
    assert "could not be read" in asked["final_state"]


def test_a_prediction_tells_what_this_call_did_even_where_the_bank_knows_the_rollout(bank: MemoryBank) -> None:
    program()(task=corridor(), bank=bank, run_id="monday")
    again = program(backbones(_twice_then_junk))(task=corridor(), bank=bank, run_id="monday")
    assert again.verdict.label == "failure"
    assert len(again.trajectory.steps) == 2
    assert len(bank.experiences()) == 1


class _Faulty(Corridor):
    """Breaks in one of many ways."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.closed = False

    def reset(self, task: Task) -> str:
        return None if self.fault == "reset none" else super().reset(task)  # type: ignore[return-value]

    def step(self, action: str) -> tuple[str, bool]:
        if self.fault == "step none":
            return None  # type: ignore[return-value]
        if self.fault == "observation none":
            return None, False  # type: ignore[return-value]
        return super().step(action)

    def valid_actions(self) -> Sequence[str] | None:
        odd: dict[str, Any] = {"actions of numbers": (1, 2), "actions of letters": "forward"}
        return odd.get(self.fault, super().valid_actions())

    def answer(self) -> str | None:
        return 42 if self.fault == "answer number" else None  # type: ignore[return-value]

    def close(self) -> None:
        self.closed = True
        if self.fault == "close":
            raise OSError("cannot close")


@pytest.mark.parametrize(
    "fault",
    ["reset none", "step none", "observation none", "actions of numbers", "actions of letters", "answer number"],
)
def test_an_environment_that_breaks_its_protocol_is_an_infrastructure_error(bank: MemoryBank, fault: str) -> None:
    made = _Faulty(fault)
    with pytest.raises(InfrastructureError, match="the environment's"):
        ReasoningBank(backbones=backbones(), environments=lambda task, rollout: made)(task=corridor(), bank=bank)
    assert made.closed


def test_an_environment_that_says_no_action_rules_is_one_too(bank: MemoryBank) -> None:
    class Mute:
        def __getattr__(self, name: str) -> Any:
            if name == "action_rules":
                raise AttributeError(name)
            return getattr(inner, name)

    inner = _Faulty("")
    with pytest.raises(InfrastructureError, match="the environment's action rules broke: AttributeError"):
        ReasoningBank(backbones=backbones(), environments=lambda task, rollout: Mute())(task=corridor(), bank=bank)
    assert inner.closed


def test_an_environment_that_fails_to_close_costs_a_warning(bank: MemoryBank, caplog: pytest.LogCaptureFixture) -> None:
    run = ReasoningBank(backbones=backbones(), environments=lambda task, rollout: _Faulty("close"))
    assert run(task=corridor(), bank=bank).verdict.label == "success"
    assert "did not close: OSError: cannot close" in caplog.text


@pytest.mark.parametrize(
    "judge", [lambda task, trajectory: None, lambda task, trajectory: 1 / 0], ids=["none", "raises"]
)
def test_a_judge_of_somebody_elses_that_breaks_loses_no_rollout(bank: MemoryBank, judge: Any) -> None:
    with pytest.raises(InfrastructureError, match="the judge"):
        program(judge=judge)(task=corridor(), bank=bank)
    (kept,) = bank.pending()
    assert (kept.state.stage, len(kept.state.trajectories[0].steps)) == ("recorded", 3)
    assert kept.state.error.startswith("not learned from: the judge")
    assert bank.seen_tasks() == set()
    assert not bank.retrieve("anything", k=5)


def test_a_rollout_that_waits_is_learned_from_without_acting_again(bank: MemoryBank) -> None:
    def broken(task: Task, trajectory: Trajectory) -> Verdict:
        raise OSError("the judge is away")

    with pytest.raises(InfrastructureError, match="the judge is away"):
        program(judge=broken)(task=corridor(), bank=bank, run_id="night")
    bones = backbones()
    (ingest,) = bank.pending()
    said = program(bones).resume(ingest)
    assert (said.verdict.label, len(said.trajectory.steps), said.experience.run_id) == ("success", 3, "night")
    assert said.memory_items == tuple(bank.items())
    assert not any("action" in prompt.wants for prompt in prompts(bones))
    assert (bank.pending(), bank.seen_tasks()) == ([], {corridor().id})


def test_a_verdict_that_was_kept_is_not_asked_for_again(bank: MemoryBank) -> None:
    bones = backbones()
    ingest = bank.ingest(corridor(), Trajectory(task_id=corridor().id), run_id="night")
    ingest.judged([Verdict(label="failure", reasons="It stood still.")])
    said = program(bones).resume(ingest)
    assert said.verdict.reasons == "It stood still."
    assert not any("label" in prompt.wants for prompt in prompts(bones))
    assert [item.polarity for item in said.memory_items] == ["failure"] * len(said.memory_items)


async def test_learning_in_steps_works_for_asyncio(bank: MemoryBank) -> None:
    steps = [{"action": "forward", "observation": "You are through."}]
    run = program()
    first = await run.alearn("Walk.", steps, bank)
    assert await run.alearn("Walk.", steps, bank) == first
    assert bank.pending() == []


def test_two_learners_of_one_attempt_mix_nothing(bank: MemoryBank) -> None:
    """The second rollout of the name comes while the first is being judged, and is judged before that is over."""
    task = Task(id="t", instruction="Walk.")
    mine = Trajectory(task_id="t", steps=(Step(action="forward", observation="You are through."),))
    late = Trajectory(task_id="t", steps=(Step(action="stand still", observation="Nothing happens."),))
    second: list[object] = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        if not second:
            second.append(task)
            ingest = bank.ingest(task, late, run_id="r")
            ingest.judged([Verdict(label="failure", reasons="It stood still.")])
        return Verdict(label="success", reasons="It walked.")

    bones = backbones()
    learned = program(bones, judge=judge).learn(task, mine, bank, run_id="r")
    assert learned.trajectories == (late,)
    assert learned.verdicts == (Verdict(label="failure", reasons="It stood still."),)
    (asked,) = [p for p in prompts(bones) if "memory_items" in p.wants]
    assert "stand still" in asked["trajectory"]
    assert (asked["judge_reasons"], learned.items[0].polarity) == ("It stood still.", "failure")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_learner_whose_rollout_lost_its_place_judges_the_one_that_has_it(
    bank: MemoryBank, asynchronous: bool
) -> None:
    task = Task(id="t", instruction="Walk.")
    other = Trajectory(task_id=task.id, answer="the newest")
    judged: list[str | None] = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        if not judged:
            bank.ingest(task, other, run_id="r")
        judged.append(trajectory.answer)
        return Verdict(label="success", reasons=f"of {trajectory.answer}")

    run = program(judge=judge)
    mine = Trajectory(task_id=task.id, answer="the first")
    if asynchronous:
        learned = await run.alearn(task, mine, bank, run_id="r")
    else:
        learned = run.learn(task, mine, bank, run_id="r")
    assert judged == ["the first", "the newest"]
    assert (learned.trajectories, learned.verdicts[0].reasons) == ((other,), "of the newest")


def test_a_rollout_that_another_has_learned_from_meanwhile_is_not_learned_from_again(bank: MemoryBank) -> None:
    task = corridor()

    def judge(_: Task, trajectory: Trajectory) -> Verdict:
        draft = MemoryDraft(title="Faster", description="d", content="c")
        bank.append(task, trajectory, Verdict(label="failure"), [draft], run_id="r")
        return Verdict(label="success")

    bones = backbones()
    done = program(bones, judge=judge)(task=task, bank=bank, run_id="r")
    assert (done.verdict.label, [item.title for item in done.memory_items]) == ("failure", ["Faster"])
    assert not any("memory_items" in prompt.wants for prompt in prompts(bones))
    assert bank.pending() == []


def test_learning_again_from_what_was_deleted_is_refused_before_a_model_is_asked(bank: MemoryBank) -> None:
    steps = [{"action": "forward", "observation": "You are through."}]
    bank.delete(program().learn("Walk.", steps, bank).id)
    bones = backbones()
    with pytest.raises(InputError, match="name another run_id"):
        program(bones).learn("Walk.", steps, bank)
    assert prompts(bones) == []
    assert program(bones).learn("Walk.", steps, bank, run_id="again").items


async def test_noting_why_it_was_not_learned_from_does_not_block_the_event_loop(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Ingest, "failed", lambda ingest, why: noted.append(threading.get_ident()))
    run = program(judge=lambda task, trajectory: 1 / 0)
    with pytest.raises(InfrastructureError, match="the judge"):
        await run.acall(task=corridor(), bank=bank)
    with pytest.raises(InfrastructureError, match="the judge"):
        await run.alearn("Walk.", [{"action": "forward", "observation": "."}], bank)
    assert len(noted) == 2
    assert threading.get_ident() not in noted


def test_rollouts_that_wait_together_are_not_for_this_program(bank: MemoryBank) -> None:
    task = corridor()
    both = [Trajectory(task_id=task.id, rollout_id=name) for name in "ab"]
    with pytest.raises(InputError, match="2 rollouts wait together"):
        program().resume(bank.ingest(task, both))


def test_a_reranker_chooses_what_is_shown(bank: MemoryBank) -> None:
    for n in range(5):
        task = Task(id=f"t{n}", instruction=f"Walk through corridor {n}.")
        draft = MemoryDraft(title=f"Lesson {n}", description="d", content="c")
        bank.append(task, Trajectory(task_id=task.id), Verdict(label="success"), [draft])
    seen: list[int] = []

    def last_first(query: str, found: Sequence[Retrieved]) -> list[Retrieved]:
        seen.append(len(found))
        return sorted(found, key=lambda one: one.task_id, reverse=True)

    chosen = program(reranker=last_first).recall("Walk through corridor 1.", bank)
    assert [item.title for item in chosen.items] == ["Lesson 4"]
    assert seen == [5]


def test_a_reranker_that_breaks_is_an_infrastructure_error(bank: MemoryBank) -> None:
    task = Task(id="t", instruction="Walk.")
    draft = MemoryDraft(title="Lesson", description="d", content="c")
    bank.append(task, Trajectory(task_id=task.id), Verdict(label="success"), [draft])
    with pytest.raises(InfrastructureError, match="the reranker"):
        program(reranker=lambda query, found: 1 / 0).recall("Go.", bank)  # type: ignore[arg-type, return-value]


def test_a_judge_of_somebody_elses_gets_no_ground_truth(bank: MemoryBank) -> None:
    seen = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        seen.append(task.env_args)
        return Verdict(label="failure", reasons="So.")

    program(judge=judge)(task=lock("Abus", 1), bank=bank)
    assert seen == [{}]


def test_learning_again_asks_no_model(bank: MemoryBank) -> None:
    bones = backbones()
    run = program(bones)
    steps = [{"action": "forward", "observation": "You are through."}]
    run.learn("Walk.", steps, bank)
    asked = len(prompts(bones))
    run.learn("Walk.", steps, bank)
    assert len(prompts(bones)) == asked


async def test_a_cancelled_call_closes_its_environment_when_its_step_is_over(bank: MemoryBank) -> None:
    import asyncio
    import time

    order: list[str] = []

    class Slow(Corridor):
        def step(self, action: str) -> tuple[str, bool]:
            time.sleep(0.2)
            order.append("step over")
            return super().step(action)

        def close(self) -> None:
            order.append("closed")

    run = ReasoningBank(backbones=backbones(), environments=lambda task, rollout: Slow())
    job = asyncio.create_task(run.acall(task=corridor(), bank=bank))
    await asyncio.sleep(0.1)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert order == ["step over", "closed"]


async def test_calls_at_once_keep_their_usage_apart(bank: MemoryBank) -> None:
    import asyncio

    run = program(backbones(latency=0.005))
    calls = [run.acall(task=corridor(f"corridor/{n}", length=n + 1), bank=bank) for n in range(8)]
    done = await asyncio.gather(*calls)
    assert [d.usage["agent"].calls for d in done] == [n + 1 for n in range(8)]


def test_what_was_shown_is_kept_with_the_verdict_that_followed(bank: MemoryBank) -> None:
    run = program()
    run(task=lock("Abus", 1), bank=bank)
    assert bank.stats().exposures == 0
    shown = run(task=lock("Abus", 2), bank=bank).memory.items
    assert bank.stats().exposures == len(shown) == 1
