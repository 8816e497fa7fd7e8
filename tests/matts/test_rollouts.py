"""How rollouts are launched: each in an environment of its own, as distinct samples, and no more than are needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig, AdaptiveConfig, MattsConfig, MattsMode, ProgramConfig, SelectConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Select
from rb_dspy.steps.events import Event, RolloutLost, listening
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.matts.helpers import (
    MODES,
    Booth,
    House,
    Script,
    asked,
    booth_task,
    called,
    counts,
    role_of,
    scaled,
    wait_with_lessons,
)

PATIENCE = 5.0
"""Seconds after which who waits for others in vain goes on."""

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


@BOTH
@pytest.mark.parametrize("mode", MODES)
async def test_every_rollout_has_an_environment_of_its_own_which_is_closed_once(
    bank: MemoryBank, mode: MattsMode, asynchronous: bool
) -> None:
    house = House(steps=2)
    script = Script(roles={"checker": lambda prompt: {"findings": "Again.", "decision": "revise"}})
    task = booth_task()
    done = await called(scaled(script, house, k=4, mode=mode), asynchronous, task=task, bank=bank)
    assert sorted(booth.rollout for booth in house.made) == ["0", "1", "2", "3"]
    assert [booth.words for booth in house.made] == [["wrong"] * 2] * 4
    assert [booth.reset_with for booth in house.made] == [[task]] * 4  # seeded alike
    assert house.closed == [1] * 4
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["0", "1", "2", "3"]


def test_the_environments_of_a_call_take_precedence(bank: MemoryBank) -> None:
    house, other = House(), House()
    scaled(house=house, k=2)(task=booth_task(), bank=bank, environments=other)
    assert (len(house.made), len(other.made)) == (0, 2)


def test_a_rollout_that_does_not_close_costs_a_warning(bank: MemoryBank, caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Booth):
        def close(self) -> None:
            raise OSError("stuck")

    done = scaled(k=3)(task=booth_task(), bank=bank, environments=lambda task, rollout: Stuck(House(), rollout))
    assert (len(done.trajectories), done.lost) == (3, ())
    assert caplog.text.count("did not close") == 3


@BOTH
async def test_rollouts_are_distinct_samples_to_a_cache(bank: MemoryBank, asynchronous: bool) -> None:
    lm = scripted_lm(Script(), cache=True)

    def same(task: Task, rollout_id: str) -> Booth:
        return Booth(House(), "0")  # nothing in the prompt tells rollouts apart

    run = scaled(lm, k=4)
    await called(run, asynchronous, task=booth_task(), bank=bank, environments=same)
    agents = [prompt for prompt in asked(run) if role_of(prompt) == "agent"]
    assert sorted(prompt.seed or 0 for prompt in agents) == [0, 1, 2, 3]
    assert len({prompt.messages for prompt in agents}) == 1


def test_retrieval_happens_once_and_all_rollouts_read_the_same(bank: MemoryBank) -> None:
    scaled(k=2)(task=booth_task(1), bank=bank)
    run = scaled(k=3)
    done = run(task=booth_task(2), bank=bank)
    blocks = [prompt["memory"] for prompt in asked(run) if role_of(prompt) == "agent"]
    assert blocks == [done.memory.block] * 3
    assert "Say the other word." in blocks[0]
    assert done.experience.shown == tuple(item.id for item in done.memory.items)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("adaptive", [False, True])
@BOTH
async def test_no_more_rollouts_run_at_once_than_configured(
    bank: MemoryBank, asynchronous: bool, adaptive: bool, at_once: int
) -> None:
    lock, running, most = threading.Lock(), set(), []

    class Counted(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            with lock:
                running.add(rollout_id)
                most.append(len(running))
            return super().__call__(task, rollout_id)

        def breaks(self, rollout: str, where: str) -> None:
            if where == "answer":
                time.sleep(0.005)
                with lock:
                    running.discard(rollout)

    config = MattsConfig(k=5, at_once=at_once, adaptive=AdaptiveConfig(enabled=adaptive))
    run = scaled(Script({"0": "right"}), Counted(), config=config)
    done = await called(run, asynchronous, task=booth_task(), bank=bank)
    assert max(most) <= at_once
    assert len(done.trajectories) == 5


@pytest.mark.parametrize("mode", ["parallel", "vanilla"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_nor_do_more_judges_or_lessons(bank: MemoryBank, at_once: int, mode: MattsMode) -> None:
    lock, running, most = threading.Lock(), [], []

    def counted(prompt: Prompt) -> Reply:
        with lock:
            running.append(prompt)
            most.append(len(running))
        time.sleep(0.005)
        with lock:
            running.pop()
        return Script().usual(prompt)

    scaled(counted, config=MattsConfig(k=5, mode=mode, at_once=at_once))(task=booth_task(), bank=bank)
    assert max(most) == at_once
    most.clear()
    select = SelectConfig(orders=5)
    scaled(counted, config=MattsConfig(k=5, mode=mode, at_once=at_once, select=select))(task=booth_task(2), bank=bank)
    assert max(most) == at_once  # the selector's orders too


def _adaptive(k: int = 5, **config: int) -> MattsConfig:
    return MattsConfig(k=k, adaptive=AdaptiveConfig(enabled=True, **config))


@pytest.mark.parametrize(
    ("words", "config", "launched"),
    [
        ({}, {}, 2),
        ({}, {"first": 3}, 3),
        ({"0": " Wrong", "1": "wrong\n"}, {}, 2),  # as one answer
        ({"0": "right"}, {}, 5),
        ({"1": "right"}, {"wave": 2}, 5),
        ({"0": "a", "1": "b"}, {}, 5),  # one verdict, but two answers
        ({"0": "right", "1": "right"}, {}, 2),
        ({}, {"first": 9}, 5),
    ],
)
@BOTH
async def test_no_more_rollouts_are_launched_once_verdicts_and_answers_agree(
    bank: MemoryBank, asynchronous: bool, words: Mapping[str, str], config: dict[str, int], launched: int
) -> None:
    house = House()
    run = scaled(Script(words), house, config=_adaptive(**config))
    done = await called(run, asynchronous, task=booth_task(), bank=bank)
    assert (done.launched, done.saved) == (launched, 5 - launched)
    assert len(house.made) == len(done.trajectories) == len(done.verdicts) == launched
    assert counts(run)["judge"] == launched  # none twice
    assert counts(run)["contraster"] == 1


class Mute(Booth):
    def answer(self) -> None:
        return None


class Meeting(House):
    """A house where all rollouts but the ``first`` begin together, or break."""

    def __init__(self, first: int, k: int) -> None:
        super().__init__()
        self.late = [str(number) for number in range(first, k)]
        self.all_there = threading.Barrier(len(self.late))

    def breaks(self, rollout: str, where: str) -> None:
        if where == "reset" and rollout in self.late:
            self.all_there.wait(PATIENCE)


def _breaks_on_the_second(prompt: Prompt) -> Reply:
    if "Booth 1" in prompt["trajectory"]:
        raise lm15.ServerError("overloaded")
    return Script().usual(prompt)


@pytest.mark.parametrize(
    ("script", "first", "kind"),
    [
        (Script({"0": "right"}), 2, Booth),
        (Script({"2": "right"}), 3, Booth),
        (Script({"0": "a", "1": "b"}), 2, Booth),
        (Script(roles={"judge": lambda prompt: "who knows"}), 2, Booth),
        (Script(roles={"judge": _breaks_on_the_second}), 2, Booth),
        (Script(), 2, Mute),
    ],
    ids=["two verdicts", "the third is odd", "two answers", "unknown", "judge broke", "failures without answers"],
)
@BOTH
async def test_all_that_are_left_are_launched_side_by_side_once_agreement_cannot_come(
    bank: MemoryBank, asynchronous: bool, script: Script, first: int, kind: type[Booth]
) -> None:
    house = Meeting(first, 6)
    run = scaled(script, config=_adaptive(6, first=first))
    booths = {"environments": lambda task, rollout: kind(house, rollout)}
    done = await called(run, asynchronous, task=booth_task(), bank=bank, **booths)
    assert (done.launched, done.saved, done.lost) == (6, 0, ())


def test_one_answer_with_two_verdicts_is_no_agreement(bank: MemoryBank) -> None:
    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(label="success" if trajectory.rollout_id == "0" else "failure")

    assert scaled(config=_adaptive(), judge=judge)(task=booth_task(), bank=bank).launched == 5


def test_unknown_never_agrees(bank: MemoryBank) -> None:
    run = scaled(Script(roles={"judge": lambda prompt: "who knows"}), config=_adaptive())
    done = run(task=booth_task(), bank=bank)
    assert {verdict.label for verdict in done.verdicts} == {"unknown"}
    assert (done.launched, done.saved) == (5, 0)


@pytest.mark.parametrize(("label", "launched"), [("failure", 5), ("success", 2)])
def test_without_answers_only_successes_agree(bank: MemoryBank, label: Any, launched: int) -> None:
    run = scaled(config=_adaptive(), judge=lambda task, trajectory: Verdict(label=label))
    done = run(task=booth_task(), bank=bank, environments=lambda task, rollout: Mute(House(), rollout))
    assert (done.launched, done.saved) == (launched, 5 - launched)


def test_waves_are_not_for_passes_over_one_rollout() -> None:
    with pytest.raises(ConfigError, match=r"adaptive is for rollouts side by side; .* refine\.until_confirmed"):
        scaled(config=MattsConfig(mode="sequential", adaptive=AdaptiveConfig(enabled=True)))


def test_one_rollout_that_is_left_does_not_agree_with_itself(bank: MemoryBank) -> None:
    house = House(faults={"0": ("reset", ValueError)})
    done = scaled(house=house, config=_adaptive())(task=booth_task(), bank=bank)
    assert (done.launched, done.saved) == (3, 2)
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["1", "2"]
    assert [lost.rollout_id for lost in done.lost] == ["0"]


@pytest.mark.parametrize(("wave", "launched"), [(1, 4), (2, 4), (3, 5)])
def test_waves_are_as_long_as_configured(bank: MemoryBank, wave: int, launched: int) -> None:
    house = House(faults=dict.fromkeys("01", ("reset", ValueError)))
    done = scaled(house=house, config=_adaptive(wave=wave))(task=booth_task(), bank=bank)
    assert (done.launched, done.saved) == (launched, 5 - launched)


def test_all_are_launched_where_it_is_not_configured(bank: MemoryBank) -> None:
    done = scaled(k=4)(task=booth_task(), bank=bank)
    assert (done.launched, done.saved) == (4, 0)


def _cold(**kwargs: Any) -> tuple[Any, House, MaTTS]:
    lm, house = scripted_lm(Script(), **kwargs.pop("lm", {})), House()
    config = ProgramConfig(act=ActConfig(**kwargs.pop("act", {})))
    return lm, house, MaTTS(ReasoningBank(config, backbones=Backbones(agent=lm), environments=house), **kwargs)


@BOTH
@pytest.mark.parametrize(
    ("where", "words"), [({"lm": {"temperature": 0.0}}, "language model"), ({"act": {"temperature": 0}}, "ActConfig")]
)
@pytest.mark.parametrize("mode", ["parallel", "best_of_n", "vanilla"])
async def test_one_sample_is_not_taken_k_times(
    bank: MemoryBank, mode: MattsMode, where: dict[str, Any], words: str, asynchronous: bool
) -> None:
    lm, house, run = _cold(k=3, mode=mode, **where)
    with pytest.raises(ConfigError, match=rf"{words} has temperature 0, so 3 rollouts would all be one; set it"):
        await called(run, asynchronous, task=booth_task(), bank=bank)
    assert (lm.engine.prompts, house.made) == ([], [])


@pytest.mark.parametrize(
    "fine",
    [
        {"k": 1, "act": {"temperature": 0}},
        {"k": 3, "mode": "sequential", "act": {"temperature": 0}},
        {"k": 3, "lm": {"temperature": 0.5}, "act": {"temperature": 0}},  # what the model was configured with wins
    ],
    ids=str,
)
def test_where_one_sample_is_taken_once_any_temperature_will_do(bank: MemoryBank, fine: dict[str, Any]) -> None:
    _, _, run = _cold(**fine)
    assert run(task=booth_task(), bank=bank).answer == "wrong"


def test_a_model_of_dspys_own_settings_is_looked_at_too(bank: MemoryBank) -> None:
    run = MaTTS(ReasoningBank(environments=House()), k=2)
    with dspy.context(lm=scripted_lm(Script(), temperature=0.0)), pytest.raises(ConfigError, match="temperature 0"):
        run(task=booth_task(), bank=bank)


@BOTH
async def test_a_model_that_was_pinned_on_the_agent_is_the_one_that_counts(
    bank: MemoryBank, asynchronous: bool
) -> None:
    lm, house, run = _cold(k=3)
    run.act.predict.lm = scripted_lm(Script(), temperature=0.0)
    with pytest.raises(ConfigError, match="language model has temperature 0"):
        await called(run, asynchronous, task=booth_task(), bank=bank)
    assert (lm.engine.prompts, run.act.predict.lm.engine.prompts, house.made) == ([], [], [])
    _, _, other = _cold(k=3, lm={"temperature": 0.0})
    other.act.predict.lm = scripted_lm(Script(), temperature=0.5)
    assert (await called(other, asynchronous, task=booth_task(), bank=bank)).launched == 3


@pytest.mark.parametrize("bad", [{"k": 0}, {"k": 65}, {"mode": "sideways"}])
def test_a_bad_setting_is_named(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"MaTTS: {next(iter(bad))} = "):
        MaTTS(ReasoningBank(), **bad)


@BOTH
@pytest.mark.parametrize("mode", MODES)
async def test_nobody_reads_ground_truth(bank: MemoryBank, mode: MattsMode, asynchronous: bool) -> None:
    task = Task(
        id="secret",
        instruction="Make booth light up.",
        env_args={"answer": "canary-answer", "code": "canary-code"},
        template="canary-template",
        domain="canary-domain",
    )
    config = MattsConfig.model_validate(
        {"k": 3, "mode": mode, "contrast": {"labels": True}, "select": {"verdicts": True, "agreement": True}}
    )

    def checker(prompt: Prompt) -> Reply:
        return {"findings": "Again.", "decision": "revise"}

    run = scaled(Script({"1": "right"}, roles={"checker": checker}), config=config)
    await called(run, asynchronous, task=task, bank=bank)
    expected = {
        "parallel": {"contraster", "selector"},
        "sequential": {"contraster", "checker"},
        "best_of_n": {"distiller", "selector"},
        "vanilla": {"distiller", "selector"},
    }[mode]
    assert set(counts(run)) == {"agent", "judge", *expected}
    assert "canary" not in "\n".join(prompt.text for prompt in asked(run))


def _watched(kind: type, seen: list[Any]) -> Any:
    """A step that notes what it is told about the task."""

    def forward(self: Any, task: Task, *args: Any) -> Any:
        seen.append(task.env_args)
        return kind.forward(self, task, *args)  # type: ignore[attr-defined]

    return type(f"Watched{kind.__name__}", (kind,), {"forward": forward})()


SECRET = booth_task().model_copy(update={"env_args": {"answer": "canary"}})


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_somebody_elses_get_no_ground_truth(bank: MemoryBank, mode: MattsMode) -> None:
    seen: list[Any] = []
    run = scaled(k=2, mode=mode)
    run.contrast, run.select, run.distill = (_watched(kind, seen) for kind in (Contrast, Select, Distill))
    run(task=SECRET, bank=bank)
    assert len(seen) == {"parallel": 2, "sequential": 1, "best_of_n": 2, "vanilla": 3}[mode]
    assert seen == [{}] * len(seen)


def test_nor_does_a_selector_that_is_asked_when_all_is_appended(bank: MemoryBank) -> None:
    seen: list[Any] = []
    wait_with_lessons(bank, scaled(k=2), SECRET)
    run = scaled(k=2)
    run.select = _watched(Select, seen)
    run.resume(*bank.pending())
    assert seen == [{}]


@BOTH
async def test_a_judge_of_somebody_elses_gets_no_ground_truth(bank: MemoryBank, asynchronous: bool) -> None:
    seen = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        seen.append(task.env_args)
        return Verdict(label="failure")

    await called(scaled(k=3, judge=judge), asynchronous, task=SECRET, bank=bank)
    assert seen == [{}] * 3


@BOTH
async def test_a_judge_that_is_a_module_need_not_know_asyncio(bank: MemoryBank, asynchronous: bool) -> None:
    class Kind(dspy.Module):  # type: ignore[misc]
        def forward(self, task: Task, trajectory: Trajectory) -> Verdict:
            return Verdict(label="success")

    done = await called(scaled(k=2, judge=Kind()), asynchronous, task=booth_task(), bank=bank)
    assert [verdict.label for verdict in done.verdicts] == ["success"] * 2


def test_who_listens_hears_of_a_lost_rollout_before_the_others_are_judged(bank: MemoryBank) -> None:
    heard: list[str] = []
    lost = threading.Event()

    def listen(event: Event) -> None:
        heard.append(type(event).__name__)
        if isinstance(event, RolloutLost):
            lost.set()

    def judge(prompt: Prompt) -> Reply:
        assert lost.wait(5)
        return Script().usual(prompt)

    house = House(faults={"1": ("step 0", lambda: ValueError("a fuse"))})
    with listening(listen):
        scaled(Script(roles={"judge": judge}), house, k=3)(task=booth_task(), bank=bank)
    assert heard.count("RolloutLost") == 1
    assert heard.index("RolloutLost") < min(heard.index("Judged"), heard.index("Selected"))
