"""One real compile with the embedded model: the judge, by GEPA, on rollouts of reasoning-gym tasks with known outcomes.

    python experiments/compile/judge.py [--budget 40] [--agent planted|model] [--folder DIR] [--out FILE] [--uri URI]

Judge and proposer of prompts are played by the one small model. With ``--agent planted`` (the default) the answers that
are judged are not: of every other task the right one, of the others the right answer to another question of the same
family, all with the same thought, so that nothing but the answer tells them apart. This model, as an agent, solves too
little of these families to have rollouts that went well (``--agent model``; ``experiments/LOG.md``). The three parts
have no family in common. Prints the judge's accuracy before and after with intervals, the diff of the prompt, what it
cost, and MLflow's run. With ``--folder`` a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy

from rb_dspy import Backbones, ReasoningBank, Task, TaskStream
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.progress import Progress
from rb_dspy.config import ActConfig, BackboneConfig, JudgeConfig, ProgramConfig, TrackingConfig
from rb_dspy.environments.reasoning_gym import ReasoningGym
from rb_dspy.steps import Distilled
from rb_dspy.stream import Streams
from rb_dspy.testing import Prompt, Reply, scripted_lm
from rb_dspy.tracking import Tracker

PARTS = {
    "compile": ("chain_sum", "spell_backward", "number_sorting", "family_relationships"),
    "dev": ("simple_equations", "word_sequence_reversal"),
    "held_out": ("number_filtering", "letter_counting", "fraction_simplification", "gcd"),
}
TERSE = "Give the answer to the task as your action, at once and in the form that is asked for. Keep the thought short."


def main() -> None:
    """Compile, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    options.add_argument("--api-base", help="address of the server, where the model is not the embedded one")
    options.add_argument("--key-env", help="the variable that holds its key")
    options.add_argument("--threads", type=int, help="CPU threads of the model; default: as many as there are cores")
    options.add_argument("--agent", choices=["planted", "model"], default="planted", help="whose answers are judged")
    options.add_argument("--tasks", type=int, nargs=3, default=(24, 16, 32), help="of compile, dev and held-out")
    options.add_argument("--budget", type=int, default=40)
    options.add_argument("--seed", type=int, default=3)
    options.add_argument("--folder", type=Path)
    options.add_argument("--out", type=Path, help="save the compiled program here")
    options.add_argument("--uri", default=TrackingConfig().uri, help="where MLflow keeps the run; empty: nowhere")
    chosen = options.parse_args()
    streams = Streams(
        **{
            name: TaskStream.named("reasoning-gym", n=n, seed=chosen.seed, templates=templates)
            for (name, templates), n in zip(PARTS.items(), chosen.tasks, strict=True)
        }
    )
    model = BackboneConfig(
        model=chosen.model, api_base=chosen.api_base, api_key_env=chosen.key_env, threads=chosen.threads
    )
    agent = (
        model if chosen.agent == "model" else scripted_lm(planted([*streams.compile, *streams.dev, *streams.held_out]))
    )
    steps = ProgramConfig(act=ActConfig(max_tokens=96, temperature=0.3), judge=JudgeConfig(max_tokens=160))
    program = ReasoningBank(steps, backbones=Backbones(agent=agent, judge=model))
    program.act.predict.signature = program.act.predict.signature.with_instructions(TERSE)
    program.distill = Nothing()
    proposer = model.model_copy(update={"temperature": 1.0, "max_tokens": 700})
    tracking = TrackingConfig(uri=chosen.uri, experiment="experiments") if chosen.uri else TrackingConfig(enabled=False)
    with Tracker(tracking).compile_run("judge", program, streams, reflection=proposer) as run:

        def on_progress(progress: Progress) -> None:
            tell(progress)
            run.on_progress(progress)

        compiled = compile_program(
            program,
            streams,
            optimizer="gepa",
            stage="judge",
            budget=chosen.budget,
            seed=chosen.seed,
            folder=chosen.folder,
            reflection=proposer,
            on_progress=on_progress,
        )
        run.log_compiled(compiled)
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
    print(f"MLflow run: {run.id or 'not kept'}")


def planted(tasks: Sequence[Task]) -> Callable[[Prompt], Reply]:
    """An agent that has the right answer to every other task of a family; to the others, another question's."""
    family = ReasoningGym()
    answers: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for task in tasks:
        seen[task.template] += 1
        (right,) = family.oracle(task)
        draw = random.Random(task.id)
        wrong = (family.random_action(family.make(task), task, draw) for _ in range(100))
        even = seen[task.template] % 2 == 0
        answers[task.instruction.strip()] = next(other for other in wrong if other != right) if even else right

    def answer(prompt: Prompt) -> Reply:
        return {"thought": "I have worked it out.", "action": answers[prompt["task"]]}

    return answer


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
