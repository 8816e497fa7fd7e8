"""How long an OpenMP thread of the embedded engine should spin before it sleeps: tokens a second, quiet and busy.

    python experiments/local_speed/spin.py [--models smollm2-135m] [--spins 0 300 1000] [--busy 0 1 2]

Between two operations of a layer the threads wait for each other, some hundred times a token. One that sleeps takes
tens of microseconds to wake; one that spins holds a core that the thread it waits for may need. ``--busy``: so many
other processes compute all the time. The library reads the setting once, so every measurement is a process of its own;
the settings take turns. "default" is what ``rb_dspy`` sets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

CALL = """
import sys
import dspy
from rb_dspy import Backbones, signatures
from rb_dspy.backbones.grammar import GrammarAdapter
lm = Backbones(agent=f"local/{sys.argv[1]}").lm("agent").copy(cache=False, num_retries=0)
rollout = "1. Thought: 17 + 25 is 43.\\n   Action: answer 43\\n   Observation: wrong"
for seed in (0, 1):  # the first one loads the model and reads what both prompts begin with
    given = {"task": f"17 + {seed}?", "trajectory": rollout, "final_state": "answer: 43"}
    config = {"seed": seed, "max_tokens": 110, "temperature": 1.0}
    with dspy.context(lm=lm, adapter=GrammarAdapter()):
        dspy.Predict(signatures.Judge)(**given, config=config)
timings = lm.history[-1]["response"].provider_data["timings"]
print(timings["prompt_per_token_ms"], timings["predicted_per_token_ms"])
"""
BUSY = "while True: pass"


def main() -> None:
    """Measure, print a table a model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", default=["smollm2-135m", "qwen2.5-coder-1.5b"])
    options.add_argument("--spins", nargs="+", default=["default", "0", "300", "1000"])
    options.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    for model in chosen.models:
        print(f"\n{model}: ms a token, written (read): median of {chosen.rounds}\n")
        print("| others that compute | " + " | ".join(f"{spins} spins" for spins in chosen.spins) + " |")
        print("|---|" + "---|" * len(chosen.spins))
        for busy in chosen.busy:
            taken: dict[str, list[tuple[float, float]]] = {spins: [] for spins in chosen.spins}
            others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
            try:
                for _ in range(chosen.rounds):
                    for spins in chosen.spins:
                        taken[spins].append(measure(model, spins))
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            cells = [[statistics.median(each) for each in zip(*taken[spins], strict=True)] for spins in chosen.spins]
            print(f"| {busy} | " + " | ".join(f"{wrote:.1f} ({read:.1f})" for read, wrote in cells) + " |", flush=True)


def measure(model: str, spins: str) -> tuple[float, float]:
    """Milliseconds a token that is read, and that is written."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if spins != "default":
        environment["GOMP_SPINCOUNT"] = spins
    command = [sys.executable, "-c", CALL, model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    read, wrote = map(float, done.stdout.split()[-2:])
    return read, wrote


if __name__ == "__main__":
    main()
