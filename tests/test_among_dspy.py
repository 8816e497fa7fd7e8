"""The programs among dspy's own tools, whatever these do to a module: copy it, pin models on it, stream, compile it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pydantic
import pytest

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig, MattsConfig, ProgramConfig, RetrieveConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Environment
from rb_dspy.schema import Retrieved, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Judge
from rb_dspy.stream import TaskStream
from rb_dspy.stream.program import StreamProgram
from rb_dspy.testing import Lock, Prompt, Reply, scripted_lm
from rb_dspy.testing.lm import AsyncScriptedEngine, ScriptedEngine
from tests import worlds
from tests.worlds import answers

TASK = worlds.lock("abus", 1)
ONE_BY_ONE = MattsConfig(k=3, at_once=1)


def made(scale: bool, **kwargs: Any) -> Any:
    program = ReasoningBank(environments=Lock.make, **kwargs)
    return MaTTS(program, config=ONE_BY_ONE) if scale else program


def plain_lm(model: str, **kwargs: Any) -> tuple[dspy.LM, ScriptedEngine]:
    """What a user makes, with dspy's cache, and a script in place of a provider."""
    engine = ScriptedEngine(answers)
    lm = dspy.LM(model, engine=engine, async_engine=AsyncScriptedEngine(engine), num_retries=0, **kwargs)
    return lm, engine


def asked(engine: ScriptedEngine, field: str) -> list[Prompt]:
    return [prompt for prompt in engine.prompts if field in prompt.wants]


# Samples


@pytest.mark.parametrize("own", [None, 0, 1, 2])
def test_rollouts_are_samples_of_their_own_whatever_the_number_of_the_language_model(
    bank: MemoryBank, own: int | None
) -> None:
    lm, engine = plain_lm("x/agent", **({} if own is None else {"rollout_id": own, "temperature": 1.0}))
    done = made(True, backbones={"agent": lm})(task=TASK, bank=bank)
    assert len(asked(engine, "action")) == len(done.trajectories) == 3
    assert done.usage["agent"].cached_calls == 0


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("kind", ["BestOfN", "Refine"])
def test_what_draws_samples_draws_them_from_each_roles_own_model(
    bank: MemoryBank, kind: str, scale: bool, wrapped: bool
) -> None:
    agent, of_agent = plain_lm("x/agent")
    judge, of_judge = plain_lm("x/judge")
    other, of_other = plain_lm("x/other")
    program = made(scale, backbones={"agent": agent, "judge": judge})

    class Mine(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = program

        def forward(self, **kwargs: Any) -> dspy.Prediction:
            return self.inner(**kwargs)

    seen: list[dspy.Prediction] = []

    def reward(_: object, prediction: dspy.Prediction) -> float:
        seen.append(prediction)
        return 0.0

    if wrapped or kind == "Refine":  # Refine asks for advice by itself, and nobody knows whose a module of one's own is
        dspy.configure(lm=other)
    draw = getattr(dspy, kind)(Mine() if wrapped else program, N=2, reward_fn=reward, threshold=1.0)
    draw(task=TASK, bank=bank)
    rollouts = 3 if scale else 1
    assert len(seen) == 2
    acted = asked(of_agent, "action")
    assert len(acted) == 2 * rollouts, "no sample is another's echo"
    assert {prompt.temperature for prompt in acted} == {0.7}
    assert asked(of_agent, "label") == asked(of_other, "action") == asked(of_other, "label") == []
    judged = asked(of_judge, "label")
    assert judged
    assert {prompt.temperature for prompt in judged} == {0.0}
    assert all(prediction.trajectory.answer for prediction in seen)
    assert all(predictor.lm is None for predictor in program.predictors())


@pytest.mark.parametrize("where", ["model", "step"])
def test_an_agent_without_heat_has_some_where_samples_are_drawn(bank: MemoryBank, where: str) -> None:
    """Else all of them would be one, without a word."""
    lm, engine = plain_lm("x/agent", **({"temperature": 0.0} if where == "model" else {}))
    config = ProgramConfig(act=ActConfig(temperature=0.0 if where == "step" else 0.7))
    program = ReasoningBank(config, backbones={"agent": lm}, environments=Lock.make)
    dspy.BestOfN(program, N=3, reward_fn=lambda *_: 0.0, threshold=1.0)(task=TASK, bank=bank)
    assert [prompt.temperature for prompt in asked(engine, "action")] == [1.0] * 3
    assert {prompt.temperature for prompt in asked(engine, "label")} == {0.0}


@pytest.mark.parametrize("scale", [False, True])
def test_a_chain_of_thought_draws_its_samples_as_a_predictor_does(bank: MemoryBank, scale: bool) -> None:
    agent, judge = (ScriptedEngine(_reasoned) for _ in range(2))
    lms = {
        name: dspy.LM(f"x/{name}", engine=engine, async_engine=AsyncScriptedEngine(engine), num_retries=0)
        for name, engine in (("agent", agent), ("judge", judge))
    }
    program = made(scale, backbones=lms)
    program.act.predict = dspy.ChainOfThought(signatures.Act)
    program.judge.predict = dspy.ChainOfThought(signatures.Judge)
    dspy.BestOfN(program, N=2, reward_fn=lambda *_: 0.0, threshold=1.0)(task=TASK, bank=bank)
    assert len(asked(agent, "action")) == (6 if scale else 2)
    assert {prompt.temperature for prompt in asked(agent, "action")} == {0.7}
    assert asked(agent, "label") == []
    assert {prompt.temperature for prompt in asked(judge, "label")} == {0.0}
    before = len(asked(agent, "action"))
    program.act.predict.set_lm(lms["agent"].copy(temperature=0.9))
    program(task=TASK, bank=bank)
    pinned = asked(agent, "action")[before:]
    assert len(pinned) == (3 if scale else 1)
    assert {prompt.temperature for prompt in pinned} == {0.9}


def _reasoned(prompt: Prompt) -> Reply:
    return {**_said(prompt), **({"reasoning": "so"} if "reasoning" in prompt.wants else {})}


def test_another_model_of_the_same_name_is_another_model(bank: MemoryBank) -> None:
    agent, of_agent = plain_lm("x/same")
    chosen, of_chosen = plain_lm("x/same", rollout_id=7, temperature=1.0)
    program = made(False, backbones={"agent": agent})
    program.judge.predict.lm = chosen
    program(task=TASK, bank=bank)
    assert [prompt.temperature for prompt in asked(of_chosen, "label")] == [1.0]
    assert asked(of_agent, "label") == []


def test_nobody_needs_an_agent_whose_steps_all_have_models(bank: MemoryBank) -> None:
    pinned, of_pinned = plain_lm("x/pinned", rollout_id=3, temperature=1.0)
    other, _ = plain_lm("x/other")
    program = made(False, backbones={"judge": other, "distiller": other})
    program.act.predict.lm = pinned
    program(task=TASK, bank=bank)
    assert len(asked(of_pinned, "action")) == 1


def test_a_model_that_somebody_has_chosen_for_a_step_is_asked(bank: MemoryBank) -> None:
    agent, of_agent = plain_lm("x/agent")
    chosen, of_chosen = plain_lm("x/chosen", rollout_id=3, temperature=0.5)
    program = made(False, backbones={"agent": agent})
    program.judge.predict.lm = chosen
    program(task=TASK, bank=bank)
    assert [prompt.temperature for prompt in asked(of_chosen, "label")] == [0.5]
    assert asked(of_agent, "label") == []


def test_what_a_predictor_is_configured_with_wins(bank: MemoryBank) -> None:
    lm, engine = plain_lm("x/agent")
    program = made(False, backbones={"agent": lm})
    program.judge.predict = dspy.Predict(program.judge.predict.signature, temperature=0.9)
    program.act.predict.update_config(temperature=0.05)
    program(task=TASK, bank=bank)
    assert [prompt.temperature for prompt in asked(engine, "label")] == [0.9]
    assert [prompt.temperature for prompt in asked(engine, "action")] == [0.05]
    program.act.predict.update_config(temperature=0.0)
    with pytest.raises(ConfigError, match="the agent's predictor has temperature 0, so 3 rollouts would all be one"):
        MaTTS(program, k=3)(task=TASK, bank=bank)


# Predictors


class InPlace(dspy.Module):
    """A module of one's own with a step's inputs and outputs, and no arguments besides."""

    def __init__(self, signature: Any) -> None:
        super().__init__()
        self.ask = dspy.ChainOfThought(signature)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        assert "config" not in inputs
        return self.ask(**inputs)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        return await self.ask.acall(**inputs)


@pytest.mark.parametrize("how", ["call", "acall"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("module", [dspy.ChainOfThought, InPlace])
def test_a_module_may_stand_in_the_place_of_a_predictor(bank: MemoryBank, module: Any, scale: bool, how: str) -> None:
    engine = ScriptedEngine(_reasoned)
    lm = dspy.LM("x/a", engine=engine, async_engine=AsyncScriptedEngine(engine), cache=False)
    program = made(scale, backbones={"agent": lm})
    program.act.predict = module(signatures.Act)
    program.judge.predict = module(signatures.Judge)
    program.distill.failure = module(signatures.DistillFailure)
    if scale:
        program.contrast.predict = module(signatures.Contrast)
        program.select.predict = module(signatures.Select)
    done = program(task=TASK, bank=bank) if how == "call" else asyncio.run(program.acall(task=TASK, bank=bank))
    assert done.answer == "0000"
    assert done.memory_items
    assert {prompt.temperature for prompt in asked(engine, "action")} == {0.7}
    assert {prompt.temperature for prompt in asked(engine, "label")} == {0.0}
    assert all("reasoning" in prompt.wants for prompt in engine.prompts)
    assert len(asked(engine, "action")) == (3 if scale else 1)


def _said(prompt: Prompt) -> dict[str, Any]:
    said = answers(prompt)
    assert not isinstance(said, str)
    return dict(said)


class Tool(pydantic.BaseModel):
    name: str
    turns: int


class Anything(Lock):
    """Takes any action, and hands it in."""

    def step(self, action: str) -> tuple[str, bool]:
        super().step(action)
        return f"you did {action}", True


@pytest.mark.parametrize(
    ("type_", "said", "answer"),
    [
        (int, 0, "0"),
        (bool, False, "false"),
        (Tool, Tool(name="key", turns=2), '{"name":"key","turns":2}'),
        (list[str], ["a", "b"], '["a","b"]'),
        (str, " turn ", "turn"),
    ],
)
def test_a_typed_action_is_what_was_said(bank: MemoryBank, type_: Any, said: Any, answer: str) -> None:
    def script(prompt: Prompt) -> Reply:
        return {"action": said} if "action" in prompt.wants else answers(prompt)

    program = ReasoningBank(backbones={"agent": scripted_lm(script)}, environments=Anything.make)
    signature = program.act.predict.signature.with_updated_fields("action", type_=type_)
    program.act.predict.signature = signature.delete("thought")
    done = program(task=TASK, bank=bank)
    assert (done.answer, done.trajectory.steps[0].action, done.trajectory.steps[0].thought) == (answer, answer, "")


@pytest.mark.parametrize("adapter", [None, dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_the_repair_is_another_question_to_a_cache(bank: MemoryBank, adapter: Any) -> None:
    """Whatever the format was that the first answer could not be read in."""
    first: set[str] = set()
    lock = threading.Lock()

    def script(prompt: Prompt) -> Reply:
        if "label" not in prompt.wants:
            return answers(prompt)
        with lock:
            first.add(prompt.text)
            return "so-so" if len(first) == 1 else answers(prompt)  # the second text that is asked, not the second time

    lm = scripted_lm(script, cache=True)
    with dspy.context(adapter=adapter):
        done = made(False, backbones={"agent": lm})(task=TASK, bank=bank)
    assert (done.verdict.label, len(first), done.usage["judge"].cached_calls) == ("failure", 2, 0)
    assert done.memory_items


# Somebody else's judge


class OwnJudge(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.check = dspy.Predict("trajectory: str -> label: str, reasons: str")

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        said = self.check(trajectory=str(trajectory.answer))
        return Verdict(label=said.label, reasons=said.reasons)


class AsyncJudge(OwnJudge):
    forward = None  # type: ignore[assignment]

    async def aforward(self, task: Task, trajectory: Trajectory) -> Verdict:
        said = await self.check.acall(trajectory=str(trajectory.answer))
        return Verdict(label=said.label, reasons=said.reasons)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(
    ("given", "configured", "plays"),
    [
        (("agent", "judge"), False, "judge"),
        (("agent", "judge"), True, "judge"),
        (("agent",), True, "other"),
        (("agent",), False, "agent"),
    ],
)
@pytest.mark.parametrize("how", ["call", "acall", "async judge", "function"])
def test_a_judge_of_ones_own_has_the_judges_model_and_is_counted(
    bank: MemoryBank, how: str, given: tuple[str, ...], configured: bool, plays: str, scale: bool
) -> None:
    engines: dict[str, ScriptedEngine] = {}
    lms: dict[str, dspy.LM] = {}
    for name in ("agent", "judge", "other"):
        engine = engines[name] = ScriptedEngine(
            lambda prompt: (
                {"label": "success", "reasons": "r"} if prompt.wants == ("label", "reasons") else answers(prompt)
            )
        )
        lms[name] = dspy.LM(f"x/{name}", engine=engine, async_engine=AsyncScriptedEngine(engine), cache=False)
    if configured:
        dspy.configure(lm=lms["other"])
    own = AsyncJudge() if how == "async judge" else OwnJudge()
    judge = (lambda task, trajectory: own(task, trajectory)) if how == "function" else own
    program = made(scale, backbones={name: lms[name] for name in given}, judge=judge)
    if how in ("call", "function"):
        done = program(task=TASK, bank=bank)
    else:
        done = asyncio.run(program.acall(task=TASK, bank=bank))
    rollouts = 3 if scale else 1
    calls = Counter({name: len(asked(engine, "reasons")) for name, engine in engines.items()})
    assert +calls == {plays: rollouts}
    assert done.usage["judge"].calls == rollouts
    assert done.usage["judge"].prompt_tokens > 0


class Panel(OwnJudge):
    """Asks three times, in dspy's own threads."""

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        pairs = [(self.check, {"trajectory": f"{trajectory.answer}, vote {n}"}) for n in range(3)]
        said = dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs)
        return Verdict(label=said[0].label, reasons=said[0].reasons)


class Picky(Judge):
    """Ours, and another question."""

    def __init__(self) -> None:
        super().__init__()
        self.check = dspy.Predict("trajectory: str -> label: str, reasons: str")

    def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
        self.check(trajectory=str(trajectory.answer))
        return super().forward(task, trajectory)


@pytest.mark.parametrize(("judge", "calls"), [(Panel, 3), (Picky, 2)])
@pytest.mark.parametrize("scale", [False, True])
def test_every_call_of_a_judge_is_counted(bank: MemoryBank, judge: Any, calls: int, scale: bool) -> None:
    def script(prompt: Prompt) -> Reply:
        return {"label": "success", "reasons": "r"} if prompt.wants == ("label", "reasons") else answers(prompt)

    lms = {name: scripted_lm(script, model=f"x/{name}") for name in ("agent", "judge")}
    done = made(scale, backbones=lms, judge=judge())(task=TASK, bank=bank)
    rollouts = 3 if scale else 1
    assert done.usage["judge"].calls == len(asked(lms["judge"].engine, "label")) == calls * rollouts
    assert done.usage["judge"].prompt_tokens > 0
    assert not [prompt for prompt in lms["agent"].engine.prompts if "label" in prompt.wants]


def test_our_judge_within_a_judge_is_counted_once(bank: MemoryBank) -> None:
    class Second(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = ReasoningBank().judge
            self.check = dspy.Predict("trajectory: str -> opinion: str")

        def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
            self.check(trajectory=str(trajectory.answer))
            verdict: Verdict = self.first(task, trajectory)
            return verdict

    def script(prompt: Prompt) -> Reply:
        return {"opinion": "fine"} if "opinion" in prompt.wants else answers(prompt)

    agent, judge = scripted_lm(script), scripted_lm(script, model="scripted/judge")
    done = made(False, backbones={"agent": agent, "judge": judge}, judge=Second())(task=TASK, bank=bank)
    assert done.usage["judge"].calls == len(judge.engine.prompts) == 2


# Streams


@pytest.mark.parametrize("program_is_async", [False, True])
@pytest.mark.parametrize("listens", [False, True])
def test_a_scaled_program_loses_no_rollout_when_it_is_streamed(
    bank: MemoryBank, program_is_async: bool, listens: bool
) -> None:
    program = MaTTS(made(False, backbones={"agent": scripted_lm(answers)}), k=3)

    async def last() -> Any:
        listeners = [dspy.streaming.StreamListener("thought", predict=program.act.predict)] if listens else []
        streamed = dspy.streamify(program, stream_listeners=listeners, is_async_program=program_is_async)
        return [each async for each in streamed(task=TASK, bank=bank)][-1]

    done = asyncio.run(last())
    assert (len(done.trajectories), done.lost) == (3, ())


def test_a_judge_that_runs_in_a_thread_is_not_streamed_and_not_lost(bank: MemoryBank) -> None:
    judge = OwnJudge()

    def plain(task: Task, trajectory: Trajectory) -> Verdict:
        verdict: Verdict = judge(task, trajectory)
        return verdict

    def script(prompt: Prompt) -> Reply:
        return {"label": "success", "reasons": "r"} if prompt.wants == ("label", "reasons") else answers(prompt)

    program = made(False, backbones={"agent": scripted_lm(script)}, judge=plain)

    async def last() -> Any:
        streamed = dspy.streamify(program, is_async_program=True)
        return [each async for each in streamed(task=TASK, bank=bank)][-1]

    assert asyncio.run(last()).verdict.label == "success"


# Demonstrations, and what is saved


def rollouts(number: int) -> list[dspy.Example]:
    found = []
    for each in range(number):
        task = worlds.lock(f"maker{each}", each, code=f"77{each}77")
        step = Step(thought="I guess.", action="1", observation="It stays shut.")
        trajectory = Trajectory(task_id=task.id, steps=(step,), answer="1")
        example = dspy.Example(task=task, trajectory=trajectory, reasons="It stays shut.", label="failure")
        found.append(example.with_inputs("task", "trajectory"))
    return found


def test_no_ground_truth_is_in_a_demonstration(tmp_path: Path) -> None:
    lm = scripted_lm(answers)
    dspy.configure(lm=lm)
    judge = ReasoningBank().judge
    examples = rollouts(4)
    labelled = dspy.LabeledFewShot(k=2).compile(judge, trainset=examples[:2])
    labelled(examples[3].task, examples[3].trajectory)
    shown = lm.engine.prompts[-1].text
    assert shown.count("It stays shut.") > 3
    assert "Open the lock that maker0 made" in shown
    assert "[step 1] thought: I guess." in shown
    compiled = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=1, max_labeled_demos=4).compile(
        judge, trainset=examples
    )
    assert len(compiled.predict.demos) == 4
    compiled.save(tmp_path / "judge.json")
    saved = (tmp_path / "judge.json").read_text()
    assert "maker1" in saved
    assert not any(code in text for text in (shown, saved) for code in ("77077", "77177", "77277", "77377"))
    again = ReasoningBank().judge
    again.load(tmp_path / "judge.json")
    assert [dict(demo) for demo in again.predict.demos] == [dict(demo) for demo in compiled.predict.demos]


def test_what_is_compiled_with_dspys_usual_options_can_be_saved(bank: MemoryBank, tmp_path: Path) -> None:
    program = made(False, backbones={"agent": scripted_lm(answers)})
    examples = [dspy.Example(task=worlds.lock("m", n), bank=bank).with_inputs("task", "bank") for n in range(3)]
    compiled = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=1).compile(
        program, trainset=examples
    )
    compiled.save(tmp_path / "all.json")
    again = ReasoningBank()
    again.load(tmp_path / "all.json")
    assert again.act.predict.demos
    assert all("bank" not in demo for predictor in again.predictors() for demo in predictor.demos)


@pytest.mark.parametrize("scale", [False, True])
def test_a_step_that_was_compiled_by_itself_is_saved_with_the_rest(scale: bool, tmp_path: Path) -> None:
    dspy.configure(lm=scripted_lm(answers))
    program = made(scale)
    program.judge = dspy.LabeledFewShot(k=2).compile(program.judge, trainset=rollouts(2))
    program.judge._compiled = True
    assert "judge.predict" not in dict(program.named_predictors()), "dspy lets no optimizer change it"
    program.save(tmp_path / "state.json")
    assert len(json.loads((tmp_path / "state.json").read_text())["judge.predict"]["demos"]) == 2
    for other in (made(scale), made(True), made(scale)):
        other.load(tmp_path / "state.json") if scale <= isinstance(other, MaTTS) else None
        assert len(other.judge.predict.demos) == 2 or not (scale <= isinstance(other, MaTTS))
    frozen = made(scale)
    frozen.judge._compiled = True
    frozen.load(tmp_path / "state.json")
    assert len(frozen.judge.predict.demos) == 2
    state = frozen.dump_state()
    del state["judge.predict"]  # as it was saved before
    frozen.load_state(state)
    assert len(frozen.judge.predict.demos) == 2


def test_a_compiled_program_can_be_compiled_on_streams(bank: MemoryBank) -> None:
    program = made(False, backbones={"agent": scripted_lm(answers)})
    program._compiled = True
    whole = StreamProgram(program, bank)
    assert "program.judge.predict" in dict(whole.named_predictors())
    assert program._compiled, "the program itself is left alone"
    assert whole.get_lm() is program.get_lm()
    whole(stream=TaskStream("one", (TASK,)))


# Copies


class Server:
    """Has what cannot be copied, and what must not be twice."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = 0

    def make(self, task: Task, rollout_id: str) -> Environment:
        with self.lock:
            self.made += 1
        return Lock.make(task, rollout_id)

    def judge(self, task: Task, trajectory: Trajectory) -> Verdict:
        with self.lock:
            return Verdict(label="success")


class Ranks:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0

    def __call__(self, query: str, found: list[Retrieved]) -> Sequence[Retrieved]:
        self.asked += 1
        return found


@pytest.mark.parametrize("scale", [False, True])
def test_copies_share_what_is_no_prompt(bank: MemoryBank, scale: bool, caplog: pytest.LogCaptureFixture) -> None:
    server, ranks = Server(), Ranks()
    program = ReasoningBank(
        ProgramConfig(retrieve=RetrieveConfig(k=1)),
        backbones={"agent": scripted_lm(answers)},
        environments=server.make,
        judge=server.judge,
        reranker=ranks,
    )
    program = MaTTS(program, config=ONE_BY_ONE) if scale else program
    copy = program.deepcopy()
    again = copy.reset_copy()
    assert copy.environments is again.environments is program.environments
    assert copy.judge is again.judge is program.judge
    assert copy.retrieve is not program.retrieve
    assert copy.retrieve.reranker is ranks
    assert copy.act.predict is not program.act.predict
    again(task=TASK, bank=bank)
    copy(task=worlds.lock("abus", 2), bank=bank)
    assert server.made == (6 if scale else 2)
    assert ranks.asked == 1
    copy.act.predict.signature = copy.act.predict.signature.with_instructions("Other.")
    assert program.act.predict.signature.instructions != "Other."
    assert caplog.text == ""


def test_a_subclass_with_what_cannot_be_copied_shares_it_too() -> None:
    class Mine(ReasoningBank):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.lock = threading.Lock()

    server = Server()
    program = Mine(environments=server.make, judge=server.judge)
    copy = program.deepcopy()
    assert copy.environments is program.environments
    assert copy.judge is program.judge
    assert copy.act.predict is not program.act.predict
    program.act.predict.demos = None  # type: ignore[assignment]
    assert program.act.predict.demos == []


def test_a_judge_that_is_a_module_is_copied_as_a_step_is() -> None:
    program = made(False, judge=OwnJudge())
    copy = program.deepcopy()
    assert copy.judge is not program.judge
    assert copy.judge.check is not program.judge.check


def test_a_step_alone_says_where_its_model_could_come_from() -> None:
    program = made(False, backbones={"agent": scripted_lm(answers)})
    trajectory = Trajectory(task_id=TASK.id, answer="1")
    with pytest.raises(Exception, match=r"or use a step of a program by itself within program.backbones.use\(\)"):
        program.judge(TASK, trajectory)
    with program.backbones.use():
        assert program.judge(TASK, trajectory).label == "failure"
    assert isinstance(program.backbones, Backbones)


def test_a_sample_that_is_asked_for_leaves_a_judge_of_no_model_of_its_own_cool(bank: MemoryBank) -> None:
    lm, engine = plain_lm("x/agent", temperature=0.9)
    draw = dspy.BestOfN(made(False, backbones={"agent": lm}), N=2, reward_fn=lambda _, __: 0.0, threshold=1.0)
    draw(task=TASK, bank=bank)
    assert {prompt.temperature for prompt in asked(engine, "action")} == {0.9}
    assert {prompt.temperature for prompt in asked(engine, "label")} == {0.0}
