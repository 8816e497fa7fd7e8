"""How much of each prompt the embedded engine has to read: from a rollout's second step on, only what is new.

    python experiments/prefix_reuse/prefix_reuse.py [--model qwen2.5-coder-1.5b] [--steps 6]

Runs two episodes of the toy corridor, judged and distilled in between, so that the roles' prompts alternate as they do
in a real run. Prints for every call: prompt tokens, tokens that were read, and tokens that were new, that is all but
the prompt of the step before.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task
from rb_dspy.backbones.llamacpp import LlamaEngine
from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.testing import Corridor, HashEmbedder


class Recorder:
    """The engine, and what each of its answers used."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self.calls: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def complete(self, request: Any) -> Any:
        """Answer, and note role, prompt tokens and cached tokens."""
        response = self._engine.complete(request)
        used = response.usage
        fields = request.system.split("All interactions")[0]
        role = "agent" if "`action`" in fields else "judge" if "`label`" in fields else "distiller"
        self.calls.append((role, used.input_tokens, used.cache_read_tokens or 0))
        return response


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="qwen2.5-coder-1.5b")
    options.add_argument("--steps", type=int, default=6)
    chosen = options.parse_args()
    recorder = Recorder(LlamaEngine(chosen.model))
    lm = dspy.LM(f"local/{chosen.model}", engine=recorder, cache=False, num_retries=0)
    config = ProgramConfig(act=ActConfig(temperature=0, max_steps=chosen.steps, max_tokens=100))
    program = ReasoningBank(config, backbones=Backbones(agent=lm), environments=Corridor.make)
    with MemoryBank.open(None, scope="experiment", embedder=HashEmbedder()) as bank:
        for n in range(2):
            task = Task(id=f"corridor/{n}", instruction=f"Walk to the end of corridor {n}.", env_args={"length": 99})
            program(task=task, bank=bank)
    print("role        prompt   read    new  read/new")
    before = 0
    for role, prompt, cached in recorder.calls:
        if role != "agent":
            before = 0
        new = prompt - before if before else prompt
        print(f"{role:10} {prompt:7} {prompt - cached:6} {new:6}  {(prompt - cached) / new:8.2f}")
        before = prompt if role == "agent" else 0


if __name__ == "__main__":
    main()
