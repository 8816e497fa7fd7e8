"""One real compile with the embedded model: the judge, by GEPA, on rollouts of reasoning-gym tasks with known outcomes.

    python experiments/compile/judge.py [--model local/qwen2.5-coder-1.5b] [--budget 24] [--folder DIR] [--out FILE]

The agent answers tersely, since this model solves more that way (``experiments/LOG.md``), and the judge needs rollouts
that went well as much as ones that did not. Everybody is played by the one small model, who proposes prompts too. The
three parts have no template in common. Prints accuracy on balanced rollouts before and after with intervals, the diff
of the prompt, and what it cost. With ``--folder`` a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

from rb_dspy import Backbones, ReasoningBank, TaskStream
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.progress import Progress
from rb_dspy.config import ActConfig, BackboneConfig, JudgeConfig, ProgramConfig
from rb_dspy.steps import Distilled
from rb_dspy.stream import Streams

PARTS = {
    "compile": ("number_format", "binary_alternation", "chain_sum", "decimal_chain_sum"),
    "dev": ("number_sequence", "basic_arithmetic"),
    "held_out": ("group_anagrams", "products", "palindrome_generation"),
}
TERSE = "Give the answer to the task as your action, at once and in the form that is asked for. Keep the thought short."


def main() -> None:
    """Compile, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    options.add_argument("--threads", type=int, help="CPU threads of the model; default: as many as there are cores")
    options.add_argument("--tasks", type=int, nargs=3, default=(12, 6, 10), help="of compile, dev and held-out")
    options.add_argument("--budget", type=int, default=20)
    options.add_argument("--seed", type=int, default=3)
    options.add_argument("--folder", type=Path)
    options.add_argument("--out", type=Path, help="save the compiled program here")
    chosen = options.parse_args()
    steps = ProgramConfig(
        act=ActConfig(max_tokens=96, temperature=0.3),
        judge=JudgeConfig(max_tokens=120),
    )
    backbones = Backbones(agent=BackboneConfig(model=chosen.model, threads=chosen.threads))
    program = ReasoningBank(steps, backbones=backbones)
    program.act.predict.signature = program.act.predict.signature.with_instructions(TERSE)
    program.distill = Nothing()
    streams = Streams(
        **{
            name: TaskStream.named("reasoning-gym", n=n, seed=chosen.seed, templates=templates)
            for (name, templates), n in zip(PARTS.items(), chosen.tasks, strict=True)
        }
    )
    compiled = compile_program(
        program,
        streams,
        optimizer="gepa",
        stage="judge",
        budget=chosen.budget,
        seed=chosen.seed,
        folder=chosen.folder,
        on_progress=tell,
    )
    if chosen.out:
        compiled.save(chosen.out)
    print(f"\n{chosen.model}, {compiled.metric_calls} metric calls of {chosen.budget}, {compiled.measure}")
    for name in ("dev", "held_out"):
        print(f"{name:9} {getattr(compiled.scores, name)}")
    print(f"improved: {compiled.improved}; {len(compiled.candidates)} candidates; {compiled.seconds / 60:.0f} minutes")
    for role, used in compiled.usage.items():
        tokens = f"{used.prompt_tokens:8,} prompt tokens  {used.completion_tokens:7,} output"
        print(f"{role:10} {used.calls:4} calls  {tokens}")
    print(compiled.diff() or "the prompt is as it was")


class Nothing(dspy.Module):
    """Distils nothing: rollouts are all that is wanted here."""

    def forward(self, *_: object) -> Distilled:
        """No drafts."""
        return Distilled(note="not distilled: this experiment is about the judge")


def tell(progress: Progress) -> None:
    """One line whenever something happened."""
    best = "-" if progress.best is None else f"{progress.best:.2f}"
    tokens = sum(used.prompt_tokens + used.completion_tokens for used in progress.usage.values())
    calls = f"{progress.metric_calls} of {progress.budget} calls"
    print(f"{progress.seconds:6.0f} s  {progress.note}: {calls}, best {best}, {tokens:,} tokens", flush=True)


if __name__ == "__main__":
    main()
