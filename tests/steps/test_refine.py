"""One trajectory, passed over again and again: which attempts there are, and what each check is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.config import ActConfig, RefineConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.protocols import EnvironmentFactory
from rb_dspy.schema import Check, Step, Task, Trajectory
from rb_dspy.steps import Act, Memory, Refine, Refined
from rb_dspy.steps.view import view
from rb_dspy.testing import Corridor, Prompt, Reply, scripted_lm
from tests.worlds import corridor


def refined(
    script: Callable[[Prompt], Reply],
    passes: int,
    *,
    task: Task | None = None,
    environments: EnvironmentFactory = Corridor.make,
    max_steps: int = 2,
    lm: Any = None,
    **config: Any,
) -> tuple[Refined, list[Prompt]]:
    lm = lm or scripted_lm(script)
    with Backbones(agent=lm).use():
        act = Act(ActConfig(max_steps=max_steps))
        found: Refined = Refine(RefineConfig(**config))(act, task or corridor(length=5), Memory(), environments, passes)
    return found, lm.engine.prompts


def walker(*decisions: str) -> Callable[[Prompt], Reply]:
    """Walks; decides about its work as ``decisions`` say, one for each check."""

    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return {"thought": "On.", "action": "forward"}
        number = prompt["earlier_checks"].count("\n") + 1 if "earlier_checks" in prompt else 0
        return {"findings": f"Seen {number}.", "decision": decisions[number]}

    return script


def test_an_episode_that_its_step_limit_had_stopped_goes_on() -> None:
    found, prompts = refined(walker("revise", "revise"), 3)
    (trajectory,) = found.trajectories
    assert [step.observation for step in trajectory.steps[:4]] == [f"You are in room {n}." for n in (1, 2, 3, 4)]
    assert trajectory.steps[-1].observation == "You are through."
    assert trajectory.stop_reason == "done"
    assert trajectory.checks == (
        Check(after=2, findings="Seen 0.", decision="revise"),
        Check(after=4, findings="Seen 1.", decision="revise"),
    )
    assert (found.passes, found.lost) == (3, "")
    assert "stopped at its step limit" in next(p for p in prompts if "decision" in p.wants)["final_state"]


def test_one_that_is_over_cannot_go_on_and_is_begun_anew() -> None:
    found, _ = refined(walker("revise", "confirm"), 3, max_steps=9)
    assert [len(trajectory.steps) for trajectory in found.trajectories] == [5, 5]
    assert "Seen 0." in found.trajectories[1].first_observation
    assert [len(trajectory.checks) for trajectory in found.trajectories] == [1, 1]


def test_a_correction_after_the_last_check_is_made_but_not_checked() -> None:
    found, prompts = refined(walker("revise"), 2)
    assert len(found.trajectories[0].steps) == 4
    assert sum("decision" in prompt.wants for prompt in prompts) == 1


def test_confirming_changes_nothing_and_checking_goes_on_unless_configured() -> None:
    decisions = ("confirm", "confirm", "confirm")
    found, _ = refined(walker(*decisions), 4)
    assert (len(found.trajectories[0].steps), len(found.trajectories[0].checks), found.passes) == (2, 3, 4)
    found, _ = refined(walker(*decisions), 4, until_confirmed=True)
    assert (len(found.trajectories[0].steps), len(found.trajectories[0].checks), found.passes) == (2, 1, 2)


def test_a_context_that_is_full_is_no_place_to_go_on_in() -> None:
    def script(prompt: Prompt) -> Reply:
        if prompt.turns == 1 and "Seen 0." not in prompt.text:
            raise lm15.ContextLengthError("too long")
        return walker("revise")(prompt)

    found, _ = refined(script, 2)
    assert [trajectory.stop_reason for trajectory in found.trajectories] == ["context", "max_steps"]


def test_a_context_that_fills_up_while_going_on_ends_the_rollout() -> None:
    def script(prompt: Prompt) -> Reply:
        if prompt.turns == 3:
            raise lm15.ContextLengthError("too long")
        return walker("revise")(prompt)

    (trajectory,) = refined(script, 2)[0].trajectories
    assert (len(trajectory.steps), trajectory.stop_reason) == (3, "context")


def test_checks_of_one_rollout_are_distinct_samples_to_a_cache() -> None:
    lm = scripted_lm(walker("confirm", "confirm", "confirm"), cache=True)
    _, prompts = refined(walker(), 4, lm=lm)
    checks = [prompt for prompt in prompts if "decision" in prompt.wants]
    assert [prompt.seed or 0 for prompt in checks] == [0, 1, 2]
    assert {prompt.temperature for prompt in checks} == {RefineConfig().temperature}


def test_a_long_trajectory_is_cut_for_the_check_to_its_budget() -> None:
    _, prompts = refined(walker("confirm"), 2, task=corridor(length=200), max_steps=120, view_tokens=300)
    (check,) = [prompt for prompt in prompts if "decision" in prompt.wants]
    assert "left out" in check["trajectory"]
    assert len(check["trajectory"]) < 300 * 3.5 * 1.5


def test_the_first_attempts_error_is_raised() -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    with pytest.raises(InfrastructureError, match="agent"):
        refined(script, 3)


async def test_asyncio_gives_the_same() -> None:
    lm = scripted_lm(walker("revise", "confirm"))
    with Backbones(agent=lm).use():
        act = Act(ActConfig(max_steps=2))
        found = await Refine().acall(act, corridor(length=5), Memory(), Corridor.make, 3)
    same, _ = refined(walker("revise", "confirm"), 3)
    told = [[t.model_dump(exclude={"usage"}) for t in one.trajectories] for one in (found, same)]
    assert told[0] == told[1]
    assert found.passes == same.passes


def test_checks_are_shown_where_they_were_made() -> None:
    steps = tuple(Step(action=f"a{n}", observation=f"o{n}") for n in (1, 2))
    checks = tuple(Check(after=n, findings=f"c{n}", decision="revise") for n in (0, 1, 2))
    lines = view(Trajectory(task_id="t", steps=steps, checks=checks), 4000)
    places = [lines.index(word) for word in ("[start]", "c0", "a1", "c1", "a2", "c2")]
    assert places == sorted(places)
