"""Our agent's calls as a rollout for the peer's ``matts_run``: the same typed calls of the same fake language model.

As little around them as there can be: no metering, no repair, no record, the environment stepped where it stands, the
language model and the adapter bound once for all rollouts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import dspy
from contestants import a_task, environment
from fake import fake_lm

from rb_dspy import signatures
from rb_dspy.backbones import adapter_for


class Agent:
    """Rollouts of ``steps`` calls each."""

    def __init__(self) -> None:
        self.lm = fake_lm()
        self._predict = dspy.Predict(signatures.Act)

    @property
    def calls(self) -> int:
        return len(self.lm.engine.calls)

    @contextlib.contextmanager
    def ready(self, latency: float) -> Iterator[None]:
        """Every rollout is to be made inside of the block."""
        self.lm.engine.latency = latency
        self.lm.engine.calls.clear()
        with dspy.context(lm=self.lm, adapter=adapter_for(self.lm), disable_history=True):
            yield

    async def rollout(self, number: int, steps: int, rollout: int, memory: str) -> list[dict[str, str]]:
        """The turns of one rollout."""
        task = a_task(number, steps)
        world = environment(task, str(rollout))
        turn: dict[str, Any] = {
            "task": task.instruction,
            "memory": memory,
            "action_rules": world.action_rules,
            "observation": world.reset(task),
        }
        before: list[dict[str, Any]] = []
        told = [{"role": "user", "content": task.instruction}]
        config = {"temperature": 0.7, "max_tokens": 1024, "rollout_id": rollout}
        done = False
        while not done:
            valid = world.valid_actions()
            if valid is not None:
                turn["valid_actions"] = list(valid)
            said = await self._predict.acall(config=config, history=dspy.History(messages=list(before)), **turn)
            before.append({**turn, "thought": said.thought, "action": said.action})
            observation, done = world.step(said.action)
            turn = {"observation": observation}
            told.append({"role": "assistant", "content": f"{said.thought}\n{said.action}"})
            told.append({"role": "user", "content": observation})
        return told
