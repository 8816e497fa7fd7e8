"""Which siblings lessons are tried on: chosen by other rollouts than they are compared with, and no more than it takes.

Were they chosen by the same ones, lessons without effect would be credited: the two worlds of the first test gave 0.60
and 0.64.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import Backbones, ReasoningBank, TaskStream
from rb_dspy.compile.harvest import Harvest, harvest
from rb_dspy.compile.metric import metric_for
from rb_dspy.compile.stages import stage_module
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from tests.worlds import answers, item, lock

MAKERS = ("Abus", "Burg", "Chubb", "Dom")
SOLVED = "its siblings are solved without lessons"


class World:
    """Locks that the agent opens with a chance; what it draws hangs on the world, the task, the number of the rollout
    and on whether it is shown lessons. The distiller always writes the same. ``with_lessons``: the chance where lessons
    are shown; None: they are ignored. ``paired``: they do not even change what is drawn.
    """

    def __init__(
        self, chance: float, number: int = 0, *, with_lessons: float | None = None, paired: bool = False, **lm: Any
    ) -> None:
        self.chance, self.number, self.with_lessons, self.paired = chance, number, with_lessons, paired
        self.acts: list[Prompt] = []
        self.breaks: str | None = None
        self.program = ReasoningBank(backbones=Backbones(agent=scripted_lm(self._script, **lm)), environments=Lock.make)
        self.told: list[int] = []

    def _script(self, prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            self.acts.append(prompt)
            if self.breaks and self.breaks in prompt["task"] and prompt.seed:
                raise lm15.ServerError("overloaded")
            taught = "Breathe" in prompt["memory"]
            chance = self.with_lessons if taught and self.with_lessons is not None else self.chance
            said = f"{self.number}/{prompt['task']}/{prompt.seed}/{taught and not self.paired}"
            drawn = int(hashlib.sha256(said.encode()).hexdigest()[:8], 16) / 2**32
            return {"thought": "A try.", "action": "4711" if drawn < chance else "0000"}
        if "label" in prompt.wants:
            return answers(prompt)
        return {"analysis": "It may help.", "memory_items": [item("Breathe", "Breathe slowly before you type.")]}

    def harvest(self, each: int = 5, **given: Any) -> Harvest:
        """A harvest of ``each`` locks of every maker; ``acts`` are those for siblings then."""
        tasks = tuple(lock(maker, number) for maker in MAKERS for number in range(each))

        def on_task(rollouts: int) -> None:
            self.acts.clear()  # what comes after the last task is for siblings

        return harvest(
            self.program, [TaskStream("s", tasks)], embedder=HashEmbedder(), on_task=on_task,
            on_sibling=self.told.append, **given,
        )  # fmt: skip

    def scores(self) -> Iterator[float]:
        """Of what the distiller writes."""
        module, metric = stage_module(self.program, "distill"), metric_for("distill", self.program)
        for example in self.harvest().examples("distill"):
            yield float(metric(example, module(**example.inputs())))  # type: ignore[arg-type]

    def asked(self) -> Counter[tuple[str, int]]:
        """How often which sibling was done in which rollout."""
        return Counter((prompt["task"], prompt.seed or 0) for prompt in self.acts)


def mean(worlds: int, chance: float, **given: Any) -> float:
    return fmean(score for number in range(worlds) for score in World(chance, number, **given).scores())


@pytest.mark.parametrize("chance", [0.8, 0.9])
def test_lessons_that_an_agent_ignores_are_not_credited(chance: float) -> None:
    assert mean(20, chance) == pytest.approx(0.5, abs=0.05)


def test_both_sides_have_the_same_numbers() -> None:
    assert set(World(0.5, paired=True).scores()) == {0.5}


def test_lessons_are_credited_with_what_they_do() -> None:
    assert mean(8, 0.5, with_lessons=1.0) == pytest.approx(0.75, abs=0.06)
    assert mean(8, 0.6, with_lessons=0.2) == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("rollouts", [1, 2])
def test_siblings_are_looked_at_in_other_rollouts_than_they_are_compared_with(rollouts: int) -> None:
    world = World(0.8)
    found = world.harvest(rollouts=rollouts)
    examples = found.examples("distill")
    assert examples
    assert found.left_out["distill"][SOLVED]
    asked = world.asked()
    assert set(asked.values()) == {1}  # nothing twice
    assert {prompt["memory"] for prompt in world.acts} == {"(no lessons yet)"}
    compared = {task for task, number in asked if number < rollouts}
    looked = {task for task, number in asked if number >= rollouts}
    assert compared == {sibling.instruction for example in examples for sibling in example.siblings}
    assert all(asked[task, number] for task in compared for number in range(rollouts))
    assert len(looked) < 20  # where one is known to fail, the others are not looked at
    assert sum(world.told) == len(world.acts)
    assert 0 not in world.told


def test_nobody_who_fails_is_looked_at_longer_and_nobody_who_solves_is_counted() -> None:
    fails = World(0.0)
    assert len(fails.harvest(rollouts=3).examples("distill")) == 20
    looked = [number for _, number in fails.asked() if number >= 3]
    assert set(looked) == {3}  # it ends with the first that fails
    assert len(looked) <= 3 * len(MAKERS)  # of 5 locks; with 3 siblings of 4, each has one that is known to fail
    solves = World(1.0)
    assert solves.harvest(rollouts=3).left_out["distill"] == {SOLVED: 20}
    assert Counter(number for _, number in solves.asked()) == {3: 20, 4: 20, 5: 20}


def test_an_agent_that_does_not_draw_does_nothing_twice() -> None:
    world = World(0.6, temperature=0)
    found = world.harvest()
    assert found.left_out["distill"][SOLVED]
    assert found.examples("distill")
    texts = Counter(prompt.text for prompt in world.acts)
    assert set(texts.values()) == {1}
    assert sum(world.told) == len(texts) <= 20
    assert {share for example in found.examples("distill") for share in example.baseline} == {0.0, 1.0}


def test_a_sibling_that_broke_is_not_asked_again() -> None:
    world = World(0.9)
    world.breaks = "Abus made, serial 1"
    examples = world.harvest().examples("distill")
    assert not [s for example in examples for s in example.siblings if "Abus made, serial 1" in s.instruction]
    assert [number for task, number in world.asked() if "Abus made, serial 1" in task] == [1]
    assert sum(world.told) == len(world.acts) - 1  # it did not come to its end
