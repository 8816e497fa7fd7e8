"""Headroom: would perfect lessons help this model on the streams that have some?

Run: ``python experiments/screens.py --model local/qwen2.5-coder-1.5b`` (an hour on two cores; resumable). For each
stream 20 tasks without memory and with the right lessons in the bank. Reports: ``experiments/evidence/screens/``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rb_dspy import Backbones, ReasoningBank, TaskStream
from rb_dspy.evaluation import Progress, screen

FOLDER = Path(__file__).parent / "evidence" / "screens"
SEED = 20261123
STREAMS: dict[str, list[str] | None] = {
    "directory": None,
    "sql": None,
    "bfcl": ["VehicleControlAPI", "GorillaFileSystem"],
}
"""Name -> templates; None: all."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("streams", nargs="*", default=list(STREAMS))
    parser.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    parser.add_argument("-n", type=int, default=20)
    options = parser.parse_args()
    program = ReasoningBank(backbones=Backbones(agent=options.model))

    def show(progress: Progress) -> None:
        print(f"{progress.done} of {progress.total}: {progress.arm}", flush=True)

    for name in options.streams:
        stream = TaskStream.named(name, n=options.n, seed=SEED, templates=STREAMS[name])
        report = screen(program, stream, tasks=options.n, folder=FOLDER / name, on_progress=show)
        solved = {arm: each.success for arm, each in report.arms.items()}
        print(f"{name}: {solved}; headroom: {report.headroom}, gain {report.gain_of_oracle}", flush=True)


if __name__ == "__main__":
    main()
