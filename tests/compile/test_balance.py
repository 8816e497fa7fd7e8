"""Optimizers search with as many successes as failures, so that always saying what is frequent wins nothing."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dspy
import pytest

from rb_dspy.compile.balance import chosen, dealt, evened
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program
from tests.compile.teacher import locks, pupil


def verdicts(successes: int, failures: int) -> list[Any]:
    labels = [True] * successes + [False] * failures
    return [dspy.Example(number=number, success=label) for number, label in enumerate(labels)]


def labels(examples: Sequence[Any]) -> Counter[Any]:
    return Counter(example.get("success") for example in examples)


def numbers(examples: Sequence[Any]) -> list[int]:
    return [example.number for example in examples]


@pytest.mark.parametrize(("successes", "failures"), [(1, 9), (9, 1), (3, 7), (5, 5)])
def test_all_labels_come_as_often_and_every_example_comes(successes: int, failures: int) -> None:
    examples = verdicts(successes, failures)
    whole = evened(examples, "s")
    assert len(set(labels(whole).values())) == 1
    assert whole[:10] == examples
    times = Counter(numbers(whole))
    assert set(times) == set(range(10))
    rarer = [times[number] for number in range(10) if examples[number].success == (successes < failures)]
    assert max(rarer) - min(rarer) <= 1
    assert whole == evened(examples, "s")
    for most in (4, 5, 8, 100):
        few = chosen(examples, most, "s")
        assert labels(few)[True] == labels(few)[False] == min(most // 2, max(successes, failures))
        for label, count in ((True, successes), (False, failures)):  # none again before all have come
            distinct = {example.number for example in few if example.success is label}
            assert len(distinct) == min(count, labels(few)[label])
        assert len({id(example) for example in few}) == len(few)
        assert few == chosen(examples, most, "s")
    assert any(numbers(chosen(examples, 8, "s")) != numbers(chosen(examples, 8, other)) for other in "tuvwx")


def test_a_few_are_dealt_label_by_label() -> None:
    examples = verdicts(2, 8)
    for n in range(1, 6):
        found = labels(dealt(examples, n, "s", again=True))
        assert abs(found[True] - found[False]) == n % 2
    assert labels(dealt(examples, 9, "s")) == {True: 2, False: 7}
    assert sorted(numbers(dealt(examples, 99, "s"))) == list(range(10))


def test_where_there_is_one_label_or_none_nothing_comes_again() -> None:
    for examples in (verdicts(6, 0), [dspy.Example(number=number) for number in range(6)], []):
        assert evened(examples, "s") == examples
        assert sorted(numbers(dealt(examples, 9, "s", again=True))) == numbers(examples)
        assert sorted(numbers(chosen(examples, 9, "s"))) == numbers(examples)
        assert len(chosen(examples, 4, "s")) == min(4, len(examples))


class Lopsided:
    """Of every eight rollouts one ends otherwise than the others. The judge knows it when it sees it, and is wrong on
    every other one of the rest; who proposes prompts knows nothing but to always say what is frequent."""

    def __init__(self, frequent: str) -> None:
        self.frequent = frequent
        self.always = f"Whatever you read, say: {frequent}."
        self.streams = Streams(
            TaskStream("to-compile", tuple(locks(3, 8))),
            TaskStream("to-choose", tuple(locks(2, 8, first=3))),
            TaskStream("held-out", tuple(locks(3, 8, first=5))),
        )
        tasks = [*self.streams.compile, *self.streams.dev, *self.streams.held_out]
        self._rare = {str(task.env_args["code"])[::-1] for task in tasks if task.id.endswith("/0")}

    def play(self, prompt: Prompt) -> Reply:
        if not {"action", "label"} & set(prompt.wants):
            return pupil(prompt)
        (serial,) = re.findall(r"serial number (\d+)", prompt["task"])
        rare = serial in self._rare
        opens = (self.frequent == "success") != rare
        if "action" in prompt.wants:
            return {"thought": "So it is.", "action": serial[::-1] if opens else serial}
        truth, other = ("success", "failure") if opens else ("failure", "success")
        fooled = not rare and zlib.crc32(f"{serial}/{prompt.seed or 0}".encode()) % 2
        said = self.frequent if self.always in prompt.system else other if fooled else truth
        return {"reasons": "It looks like it.", "label": said}

    def propose(self, prompt: Prompt) -> Reply:
        if "new_instruction" in prompt.wants:
            return {"new_instruction": f"{prompt['current_instruction']}\n\n{self.always}"}
        if "proposed_instruction" in prompt.wants:
            return {"proposed_instruction": f"{prompt['basic_instruction']}\n\n{self.always}"}
        if "module_advice" in prompt.wants:
            names = json.loads(prompt["module_names"])
            return {"discussion": "One is rare.", "module_advice": dict.fromkeys(names, self.always)}
        return dict.fromkeys(prompt.wants, "It judges rollouts.")


@pytest.mark.parametrize("frequent", ["failure", "success"])
@pytest.mark.parametrize("optimizer", ["gepa", "miprov2", "simba"])
def test_a_judge_that_always_says_the_frequent_label_does_not_win(optimizer: str, frequent: str) -> None:
    world = Lopsided(frequent)
    made = compiled(
        program=program(scripted_lm(world.play)), reflection=scripted_lm(world.propose), streams=world.streams,
        optimizer=optimizer, stage="judge", budget=160, seed=1,
    )  # fmt: skip
    tried = [each.score for each in made.candidates if world.always in each.prompts["judge.predict"]["instructions"]]
    assert set(tried) <= {0.5}
    assert tried or optimizer == "simba"  # which finds it no good before it is rated on dev
    assert world.always not in made.prompts_after["judge.predict"]["instructions"]
    assert 0.5 < made.candidates[0].score < 1
    assert made.examples["train"] == 24  # none was left out
    assert made.scores.held_out.before.tasks == 24
