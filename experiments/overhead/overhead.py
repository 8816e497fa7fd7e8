"""What the framework costs on top of dspy: CPU time of an episode against its bare dspy calls in a plain loop.

Both sides make the same calls with the same prompts to the same instant language model, in one process, in turns.
The framework's side also retrieves, renders, meters and appends to a bank; the plain side does none of that.

    python experiments/overhead/overhead.py [--steps 10] [--rounds 40]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task, signatures
from rb_dspy.testing import Corridor, Prompt, Reply, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder


def answers(prompt: Prompt) -> Reply:
    """An instant model."""
    if "action" in prompt.wants:
        return {"thought": "The end is ahead, so the next step is forward.", "action": "forward"}
    if "label" in prompt.wants:
        return {"reasons": "The last observation says so.", "label": "success"}
    lesson = {"title": "Keep going", "description": "In corridors.", "content": "Go forward until you are through."}
    return {"analysis": "It kept going.", "memory_items": [lesson]}


class Plain:
    """The same episode with dspy alone."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm
        self.act, self.judge, self.distill = (
            dspy.Predict(s) for s in (signatures.Act, signatures.Judge, signatures.DistillSuccess)
        )

    def episode(self, task: Task, memory: str) -> None:
        """Act, judge, distil; ``memory`` is the block that rb_dspy will retrieve, so that the prompts are the same."""
        environment = Corridor.make(task, "0")
        turn: dict[str, Any] = {
            "task": task.instruction,
            "memory": memory,
            "action_rules": environment.action_rules,
            "observation": environment.reset(task),
        }
        turns: list[dict[str, Any]] = []
        lines: list[str] = []
        with dspy.context(lm=self.lm, adapter=dspy.ChatAdapter(), disable_history=True):
            done = False
            while not done:
                turn["valid_actions"] = list(environment.valid_actions() or ())
                said = self.act(**turn, history=dspy.History(messages=list(turns)))
                observation, done = environment.step(said.action)
                lines.append(f"{said.thought}\n{said.action}\n{observation}")
                turns.append({**turn, "thought": said.thought, "action": said.action})
                turn = {"observation": observation}
            transcript = "\n".join(lines)
            verdict = self.judge(task=task.instruction, trajectory=transcript, final_state=lines[-1])
            self.distill(task=task.instruction, trajectory=transcript, judge_reasons=verdict.reasons)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--rounds", type=int, default=40)
    chosen = options.parse_args()
    lm = scripted_lm(answers)
    plain = Plain(lm)
    program = ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)

    def task(n: int) -> Task:
        return Task(id=f"corridor/{n}", instruction=f"Walk through corridor {n}.", env_args={"length": chosen.steps})

    print(f"{chosen.steps}-step episodes, {chosen.rounds} rounds, CPU ms an episode: median [quartiles]")
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("bank in memory", None), ("bank on disk", Path(folder) / "bank.sqlite")):
            with MemoryBank.open(url, scope="bench", embedder=HashEmbedder()) as bank:
                pairs = []
                for n in range(chosen.rounds + 5):
                    lm.engine.prompts.clear()
                    memory = program.recall(task(n), bank).block
                    bare = cpu(lambda n=n, memory=memory: plain.episode(task(n), memory))
                    with dspy.context(disable_history=True):
                        ours = cpu(lambda n=n, bank=bank: program(task=task(n), bank=bank))
                    if n >= 5:  # the first rounds fill caches of both
                        pairs.append((bare, ours))
            ratios = [ours / bare for bare, ours in pairs]
            print(
                f"{name:15}  plain dspy {spread([b for b, _ in pairs])}   rb_dspy {spread([o for _, o in pairs])}"
                f"   ratio {spread(ratios)}"
            )


def cpu(work: Any) -> float:
    """CPU milliseconds of this process."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
