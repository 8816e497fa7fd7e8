from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rb_dspy import ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.memories import Base, Curated, system_of
from rb_dspy.protocols import Environment
from rb_dspy.schema import ItemDraft, Outcome, Task, Trajectory, Verdict
from rb_dspy.steps import Retrieve
from rb_dspy.testing import Prompt, lock, scripted_lm
from tests.memories.worlds import anything, new_bank

WORDS = {"red": "apple", "blue": "plum", "green": "pear", "white": "fig", "black": "cherry", "grey": "lemon"}


class Pages(Environment):
    """Pages of a site, one after the other: each wants a word, and tells it too late."""

    action_rules = "a word"

    def __init__(self, colours: list[str]) -> None:
        self.left, self.right = colours, True

    def reset(self, task: Task) -> str:
        return f"The {self.left[0]} page wants a word."

    def step(self, action: str) -> tuple[str, bool]:
        colour, *self.left = self.left
        self.right = self.right and action == WORDS[colour]
        if self.left:
            return f"The {self.left[0]} page wants a word.", False
        return ("Welcome." if self.right else f"Goodbye. The {colour} page wanted {WORDS[colour]}."), True

    def outcome(self) -> Outcome:
        return Outcome(reward=float(self.right), success=self.right)


def site(*colours: str) -> Task:
    name = "-".join(colours)
    return Task(id=name, instruction="Get in.", env="pages", env_args={"colours": list(colours)})


class Visitor:
    """Types the word that any text in its prompt has for the page it sees."""

    def __init__(self) -> None:
        self.saw: list[str] = []

    def __call__(self, prompt: Prompt) -> Any:
        if "action" in prompt.wants:
            self.saw.append(prompt["observation"])
            colour = re.findall(r"The (\w+) page wants a word", prompt["observation"])[-1]
            return {"thought": "", "action": WORDS[colour] if WORDS[colour] in prompt.text else "word"}
        if "strategies" in prompt.wants:
            told = re.search(r"The (\w+) page wanted (\w+)", prompt["trajectory"])
            seen = {"title": f"The {told[1]} page wants a word.", "content": f"Type {told[2]}."} if told else None
            return {"strategies": [seen] if seen else [], "warnings": []}
        return anything(prompt) | {"label": "failure" if "Goodbye" in prompt["trajectory"] else "success"}


def visiting(visitor: Visitor) -> ReasoningBank:
    def pages(task: Task, rollout_id: str) -> Environment:
        return Pages([str(each) for each in task.env_args["colours"]])  # type: ignore[union-attr]

    return ReasoningBank(memory="slea", backbones=Backbones(agent=scripted_lm(visitor)), environments=pages)


def test_each_page_brings_its_own_lesson() -> None:
    with new_bank() as bank:
        done = visiting(visitor := Visitor())
        for colour in WORDS:
            done(task=site(colour), bank=bank, run_id="r")
        assert {each.verdicts[0].label for each in bank.experiences()} == {"failure"}
        visitor.saw.clear()
        every = site(*WORDS)
        beside = done.recall(every, bank).items
        assert done(task=every, bank=bank, run_id="r").verdict.label == "success"
        for colour, text in zip(WORDS, visitor.saw, strict=True):
            assert WORDS[colour] in text or any(WORDS[colour] in item.content for item in beside)
            assert len(text.rsplit("The", 1)[0]) <= 800
        assert len(beside) == 2


def test_what_was_learned_from_the_task_itself_is_shown_at_no_turn() -> None:
    with new_bank() as bank:
        done = visiting(visitor := Visitor())
        for run in ("r", "s"):
            done(task=site("red"), bank=bank, run_id=run)
        assert visitor.saw == ["The red page wants a word."] * 2


def test_a_full_zone_takes_a_new_item_only_for_one_that_is_worse_than_an_untried_one() -> None:
    (zone, _) = system_of("slea", Base(Retrieve())).curate
    zone = replace(zone, most=2)
    first = [ItemDraft(title=f"Page {n}", description="", content="Go on.", kind="strategy") for n in range(2)]
    new = Curated((ItemDraft(title="Page 9", description="", content="Go back.", kind="strategy"),))
    with new_bank() as bank:
        task = lock("Abus", 1)

        def tried(n: int, shown: Any = (), drafts: Any = ()) -> Any:
            rollout = Trajectory(task_id=f"t{n}", answer=str(n))
            return bank.append(
                Task(id=f"t{n}", instruction="x"), rollout, Verdict(label="failure"), drafts, shown=shown
            )

        _, bad = tried(0, drafts=first).items
        assert not zone(new, task, bank).drafts
        tried(1, shown=[bad])
        kept = zone(new, task, bank)
        assert (kept.drafts, [*kept.retired]) == (new.drafts, [bad.id])
