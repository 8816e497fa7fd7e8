"""Synapse: an agent that does what was done in the exemplars of its conversation."""

from __future__ import annotations

from typing import Any

from rb_dspy.config import ActConfig, ProgramConfig, RetrieveConfig
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import corridor, locksmith
from rb_dspy.text import estimate_tokens
from tests.memories.worlds import new_bank, program

CONFIG = ProgramConfig(act=ActConfig(max_steps=4))


def imitator(prompt: Prompt) -> Any:
    """Goes through the first corridor; in others it does what an earlier turn shows for what it sees, or waits."""
    if "action" not in prompt.wants:
        return locksmith(prompt)
    sees = prompt["observation"].splitlines()[-1]
    turns = list(zip(prompt.messages, prompt.messages[1:], strict=False))
    shown = [
        said.partition("action ## ]]")[2].split()[0]
        for (_, seen), (role, said) in turns
        if role == "assistant" and sees in seen
    ]
    first = "number 1." in prompt["task"]
    return {"thought": "I go on.", "action": "forward" if first else shown[0] if shown else "wait"}


def test_the_agent_does_what_earlier_turns_show() -> None:
    with new_bank() as bank:
        done = program("synapse", imitator, CONFIG)
        assert done(task=corridor(1), bank=bank, run_id="r").verdict.label == "success"
        again = done(task=corridor(2), bank=bank, run_id="r")
        assert [step.action for step in again.trajectory.steps] == ["forward"] * 3
        assert [action for _, action in again.memory.turns] == ["forward"] * 3
        assert "Walk through corridor number 1." in again.memory.turns[0][0]
        assert again.memory.turns[1][0] == "You are in room 1."
    with new_bank() as bank:  # as text, without what was seen, it is no turn
        done = program("synapse_paper", imitator, CONFIG)
        done(task=corridor(1), bank=bank, run_id="r")
        later = done(task=corridor(2), bank=bank, run_id="r")
        assert later.verdict.label == "failure"
        assert later.memory.block.count("thought: I go on.") == later.memory.block.count("action: forward") == 3
        assert "You are in room" not in later.memory.block
        assert (later.memory.position, later.memory.turns) == ("system", ())


def test_long_exemplars_keep_their_actions_within_the_cap() -> None:
    for most in (60, 150, 1500):
        config = ProgramConfig(act=ActConfig(max_steps=9), retrieve=RetrieveConfig(max_tokens=most))
        with new_bank() as bank:
            done = program("synapse", imitator, config)
            task = corridor(1, 8)
            done(task=task.model_copy(update={"instruction": f"{task.instruction} {'so ' * 4_000}"}), bank=bank)
            memory = done.recall(corridor(2), bank)
            assert {action for _, action in memory.turns} == {"forward"}
            assert sum(estimate_tokens(part) for turn in memory.turns for part in turn) <= most
            assert memory.beyond > 1_900
            assert len(memory.turns) == (8 if most > 100 else len(memory.turns))
