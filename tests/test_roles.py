"""Which language model plays which role, and what each used."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

import dspy
import pytest
from dspy import lm15

import rb_dspy
from rb_dspy import BackboneConfig, Backbones, MaTTS, MemoryBank, ReasoningBank, StreamProgram, TaskStream, toml
from rb_dspy.backbones import active, in_use, lm_of, metered, none_in_use, report
from rb_dspy.backbones.check import check
from rb_dspy.compile.answers import Answers, Cast
from rb_dspy.config import JudgeConfig, Settings
from rb_dspy.errors import BackboneError, ConfigError, InfrastructureError
from rb_dspy.schema import RoleUsage, Step, Trajectory
from rb_dspy.steps import Judge, Memory
from rb_dspy.steps.player import sampling
from rb_dspy.testing import Corridor, Doors, HashEmbedder, Prompt, Reply, scripted_lm
from tests.worlds import answers, corridor, hall, openers


def test_each_role_is_played_by_its_own_model_and_unset_ones_by_the_agents(bank: MemoryBank) -> None:
    agent, judge = scripted_lm(answers, model="scripted/a"), scripted_lm(answers, model="scripted/j")
    run = ReasoningBank(backbones=Backbones(agent=agent, judge=judge), environments=Corridor.make)
    run(task=corridor(), bank=bank)
    assert [p.wants[-1] for p in judge.engine.prompts] == ["label"]
    assert [p.wants[-1] for p in agent.engine.prompts] == ["action"] * 3 + ["memory_items"]
    assert next(iter(bank.items())).provenance.distiller == "scripted/a"


@pytest.mark.parametrize(
    ("given", "contraster", "selector"),
    [
        (["agent"], "agent", "agent"),
        (["agent", "distiller"], "distiller", "agent"),
        (["agent", "judge"], "agent", "judge"),
        (["agent", "judge", "distiller", "contraster", "selector"], "contraster", "selector"),
    ],
)
def test_the_contraster_is_played_by_the_distillers_model_and_the_selector_by_the_judges(
    bank: MemoryBank, given: list[str], contraster: str, selector: str
) -> None:
    lms = {role: scripted_lm(openers, model=f"scripted/{role}") for role in given}
    bones = Backbones(**lms)
    assert {role: lm.model for role, lm in bones.roles().items() if role in ("contraster", "selector")} == {
        "contraster": f"scripted/{contraster}",
        "selector": f"scripted/{selector}",
    }
    MaTTS(ReasoningBank(backbones=bones, environments=Doors.make), 2)(task=hall("Ann", 1), bank=bank)
    asked = {prompt.wants[-1]: role for role, lm in lms.items() for prompt in lm.engine.prompts}
    assert asked["choice"] == selector
    assert asked["memory_items"] == contraster
    assert next(iter(bank.items())).provenance.distiller == f"scripted/{contraster}"


def test_without_backbones_the_configured_lm_plays_every_role(bank: MemoryBank) -> None:
    lm = scripted_lm(answers)
    with dspy.context(lm=lm):
        ReasoningBank(environments=Corridor.make)(task=corridor(), bank=bank)
    assert len(lm.engine.prompts) == 5


def test_no_model_at_all_is_one_clear_line(bank: MemoryBank) -> None:
    with pytest.raises(BackboneError, match=r"no language model for role 'agent'; give Backbones"):
        ReasoningBank(environments=Corridor.make)(task=corridor(), bank=bank)


def test_backbones_are_shared_by_copies_and_never_pickled() -> None:
    bones = Backbones(agent=scripted_lm(answers))
    assert copy.deepcopy(bones) is bones
    with pytest.raises(BackboneError, match="never saved"):
        pickle.dumps(bones)


def test_equal_configurations_share_one_model() -> None:
    config = BackboneConfig(model="openai/some-model", max_tokens=100)
    for found in (
        Backbones.from_settings({"agent": config, "judge": config.model_copy()}),
        Backbones(agent="openai/some-model", judge="openai/some-model"),
    ):
        assert found.lm("agent") is found.lm("judge")


def test_bad_backbones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="got int"):
        Backbones(agent=7)
    monkeypatch.delenv("RB_TEST_KEY", raising=False)
    with pytest.raises(BackboneError, match="RB_TEST_KEY is not set"):
        Backbones(agent=BackboneConfig(model="openai/x", api_key_env="RB_TEST_KEY"))
    with pytest.raises(BackboneError, match="openai/"):
        Backbones(agent="openai/")
    settings = toml.parse(Settings, {"backbones": {"agent": {"api_base": "http://127.0.0.1:1/v1"}}}, "settings")
    with pytest.raises(ConfigError, match=r"^local/\S+ runs in this process; api_base .* set the model that is"):
        Backbones.from_settings(settings.backbones)


def test_a_callers_own_usage_tracking_still_sees_every_call(bank: MemoryBank) -> None:
    lm = scripted_lm(answers)
    run = ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)
    with dspy.track_usage() as tracker:
        done = run(task=corridor(), bank=bank)
    seen = tracker.get_total_tokens()["scripted/lm"]
    ours = done.usage.values()
    assert seen["prompt_tokens"] == sum(used.prompt_tokens for used in ours) > 0
    assert seen["completion_tokens"] == sum(used.completion_tokens for used in ours) > 0


def test_cached_calls_are_counted_but_cost_no_tokens() -> None:
    lm = scripted_lm(answers, cache=True)
    run = ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)
    for cached in (0, 3):
        with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as fresh:
            used = run(task=corridor(), bank=fresh).usage["agent"]
        assert (used.calls, used.cached_calls) == (3, cached)
        assert bool(used.prompt_tokens) is (cached == 0)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
async def test_calls_that_fail_are_counted_but_not_as_cached(asynchronous: bool) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    def small(prompt: Prompt) -> Reply:
        if prompt.wants[-1] == "label" and len(prompt["trajectory"]) > 6_000:
            raise lm15.ContextLengthError("too long")
        return answers(prompt)

    def mess_then_down(prompt: Prompt) -> Reply:
        if "JSON object" in prompt.text:
            raise lm15.ServerError("overloaded")
        return "mess"

    def mess(prompt: Prompt) -> Reply:
        return "mess"

    long = Trajectory(task_id="t", steps=tuple(Step(action=f"dig {n}", observation="sand " * 40) for n in range(100)))
    judge = Judge(JudgeConfig(view_tokens=6_400))
    expected = {down: (1, [0, 0]), small: (3, [0, 1]), mess_then_down: (2, [0, 1]), mess: (2, [0, 2])}
    for script, (calls, cached) in expected.items():
        lm = scripted_lm(script, cache=True, model=f"scripted/{script.__name__}")
        for again in cached:  # what the model answered the first time comes from the cache
            with metered() as ledger, dspy.context(lm=lm), suppress(InfrastructureError):
                await judge.acall(corridor(), long) if asynchronous else judge(corridor(), long)
            used = ledger.usage()["judge"]
            assert (script, used.calls, used.cached_calls) == (script, calls, again)


def test_a_ledger_counts_its_own_block_and_copied_contexts_and_nothing_else() -> None:
    with metered() as outer:
        report("agent", RoleUsage(calls=1))
        with metered() as inner:
            context = copy_context()
            threads = [
                threading.Thread(target=context.copy().run, args=(report, "judge", RoleUsage(calls=1, prompt_tokens=n)))
                for n in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    report("agent", RoleUsage(calls=100))
    assert inner.usage() == {"judge": RoleUsage(calls=20, prompt_tokens=190)}
    assert outer.usage() == {"agent": RoleUsage(calls=1), "judge": RoleUsage(calls=20, prompt_tokens=190)}


def test_check_names_a_missing_key_and_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    unreachable = BackboneConfig(model="openai/x", api_base="http://127.0.0.1:9/v1", api_key_env="RB_TEST_KEY")
    monkeypatch.setenv("RB_TEST_KEY", "not-a-key")
    found = {
        result.role: result.problem
        for result in check({"agent": BackboneConfig(model="openai/gpt-4o-mini"), "judge": unreachable})
    }
    assert "no key" in found["agent"]
    assert "cannot be reached" in found["judge"]
    assert "no key" in found["distiller"]
    assert "no key" in found["contraster"]
    assert "cannot be reached" in found["selector"]
    assert not any("\n" in problem or "not-a-key" in problem for problem in found.values())


def test_a_models_own_settings_win_over_the_steps(bank: MemoryBank) -> None:
    lm = scripted_lm(answers, temperature=0.2)
    ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)(task=corridor(), bank=bank)
    assert [prompt.temperature for prompt in lm.engine.prompts] == [0.2, 0.2, 0.2, 0.0, 1.0], "of the role it is for"
    both = Backbones(agent=lm, judge=lm)
    asked = len(lm.engine.prompts)
    ReasoningBank(backbones=both, environments=Corridor.make)(task=corridor(length=4), bank=bank)
    assert [prompt.temperature for prompt in lm.engine.prompts[asked:]] == [0.2, 0.2, 0.2, 0.2, 0.2, 1.0]
    lm = scripted_lm(answers)
    ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)(task=corridor(), bank=bank)
    assert [prompt.temperature for prompt in lm.engine.prompts] == [0.7, 0.7, 0.7, 0.0, 1.0]


def test_a_compile_asks_each_role_as_a_run_does(bank: MemoryBank) -> None:
    def asked(run: Callable[[Backbones], object]) -> Counter[tuple[str, float | None]]:
        lm = scripted_lm(answers, temperature=0.9)
        run(Backbones(agent=lm))
        return Counter((prompt.wants[-1], prompt.temperature) for prompt in lm.engine.prompts)

    stream = TaskStream("s", (corridor("corridor/1"), corridor("corridor/2")))

    def run(bones: Backbones) -> object:
        program = ReasoningBank(backbones=bones, environments=Corridor.make)
        return StreamProgram(program, embedder=HashEmbedder())(stream=stream)

    def compile_(bones: Backbones) -> object:
        with Cast(bones, Answers()).playing():
            return StreamProgram(ReasoningBank(environments=Corridor.make), embedder=HashEmbedder())(stream=stream)

    found = asked(run)
    assert found == asked(compile_)
    assert {temperature for name, temperature in found if name == "label"} == {0.0}


def test_a_reasoning_model_that_stands_in_keeps_the_one_temperature_it_takes() -> None:
    lm = dspy.LM("openai/gpt-5", temperature=1.0, max_tokens=20_000)
    with Backbones(agent=lm).use():
        assert sampling(lm, Judge().predict, 0.0, 100, role="judge") == {}


def test_backbones_are_swapped_by_others_and_never_changed() -> None:
    agent, judge, other = (scripted_lm(answers, model=f"scripted/{name}") for name in "ajo")
    bones = Backbones(agent=agent, judge=judge)
    with pytest.raises(ConfigError, match=r"set program.backbones = program.backbones.replace\(judge=...\)"):
        bones.judge = other
    swapped = bones.replace(judge=other)
    assert (swapped.lm("judge"), swapped.lm("agent"), bones.lm("judge")) == (other, agent, judge)
    assert bones.replace(judge=None).lm("judge") is agent
    with pytest.raises(ConfigError, match="'referee' is no role; expected some of agent"):
        bones.replace(referee=other)


def test_rollouts_are_distinct_samples_even_with_a_cache() -> None:
    lm = scripted_lm(answers, cache=True)
    act = ReasoningBank(environments=Corridor.make).act
    with dspy.context(lm=lm):
        for rollout in (0, 1, 1, 2):
            act(corridor(), Memory(), Corridor.make, rollout)
    assert len(lm.engine.prompts) == 3 * 3  # the repeated rollout came from the cache


def test_a_script_learns_which_rollout_it_is_asked_for() -> None:
    lm = scripted_lm(answers)
    act = ReasoningBank(environments=Corridor.make).act
    with dspy.context(lm=lm):
        for rollout in (0, 1, 2):
            act(corridor(length=1), Memory(), Corridor.make, rollout)
    assert [prompt.seed for prompt in lm.engine.prompts] == [None, 1, 2]


async def test_a_script_learns_which_rollout_it_is_asked_for_in_asyncio_too() -> None:
    lm = scripted_lm(answers)
    act = ReasoningBank(environments=Corridor.make).act
    with dspy.context(lm=lm):
        await act.acall(corridor(length=1), Memory(), Corridor.make, 3)
    assert [prompt.seed for prompt in lm.engine.prompts] == [3]


def test_a_model_that_others_pinned_on_a_predictor_is_respected(bank: MemoryBank) -> None:
    pinned = scripted_lm(answers, model="scripted/pinned")
    run = ReasoningBank(environments=Corridor.make)
    run.set_lm(pinned)
    done = run(task=corridor(), bank=bank)
    assert len(pinned.engine.prompts) == 5
    assert done.memory_items[0].provenance.distiller == "scripted/pinned"


def test_those_in_use_give_way_to_ones_own_and_can_be_left() -> None:
    inner, outer = Backbones(agent=scripted_lm(answers)), Backbones(agent=scripted_lm(answers))
    assert not in_use()
    with pytest.raises(BackboneError):
        active().lm("agent")
    with outer.use():
        assert in_use()
        assert active() is copy_context().run(active) is outer
        assert active(inner) is inner
        with suppress(ZeroDivisionError), none_in_use():
            assert not in_use()
            with inner.use():
                assert lm_of("judge") is inner.lm("agent")
            with dspy.context(lm=inner.lm("agent")):
                assert lm_of("judge") is inner.lm("agent")
            raise ZeroDivisionError
        assert active() is outer
    assert not in_use()


def test_one_module_knows_where_those_in_use_stand() -> None:
    package = Path(rb_dspy.__file__).parent
    knowing = [path for path in package.rglob("*.py") if "rb_dspy_backbones" in path.read_text("utf-8")]
    assert knowing == [package / "backbones" / "roles.py"]


def test_dspys_own_threads_know_the_backbones_and_the_ledgers() -> None:
    lm = scripted_lm(answers)
    run = ReasoningBank(environments=Corridor.make)
    opened = MemoryBank.open(None, scope="t", embedder=HashEmbedder())
    with opened as bank, Backbones(agent=lm).use(), metered() as ledger:
        pairs = [(run, {"task": corridor(f"corridor/{n}"), "bank": bank}) for n in range(4)]
        dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)
    assert ledger.usage()["agent"].calls == 12


def test_an_unknown_provider_is_a_model_that_cannot_be_used(bank: MemoryBank) -> None:
    run = ReasoningBank(backbones=Backbones(agent="nosuchprovider/model"), environments=Corridor.make)
    with pytest.raises(BackboneError, match="no provider of that name; expected PROVIDER/MODEL"):
        run(task=corridor(), bank=bank)


def test_calls_that_a_callers_adapter_adds_are_counted(bank: MemoryBank) -> None:
    def script(prompt: Prompt) -> Reply:
        return "mess" if "label" in prompt.wants else answers(prompt)

    lm = scripted_lm(script)
    run = ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)
    with dspy.context(adapter=dspy.ChatAdapter()):
        used = run(task=corridor(), bank=bank).usage
    assert sum(u.calls for u in used.values()) == len(lm.engine.prompts)
