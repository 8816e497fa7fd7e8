"""Evidence in addition to ``rb-dspy evaluate``: headroom of the streams, several rollouts, and the README's picture.

Run: ``python experiments/evidence.py screens``, ``scaling`` or ``picture``.

``screens`` runs 20 tasks of each stream without memory and with oracle lessons in the bank; ``scaling`` compares one
rollout with three. Both take hours on two cores, and continue if they are started again. ``picture`` draws the
learning curves of this evaluation, which has to be run first::

    rb-dspy evaluate directory -n 32 --seed 1 --arms none,placebo,raw,bank,true_verdicts \\
        --orders 3 --folder experiments/evidence/directory

Results are in ``experiments/evidence/``.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rb_dspy import Backbones, MaTTS, ReasoningBank, TaskStream
from rb_dspy.evaluation import Arm, Report, evaluate, screen
from rb_dspy.evaluation.chart import SOLVED, Axis, Line, picture
from rb_dspy.evaluation.intervals import mean_interval
from rb_dspy.evaluation.records import read_records

EVIDENCE = Path(__file__).parent / "evidence"
PICTURE = Path(__file__).parents[1] / "docs" / "evidence.svg"
SEED = 20261123
STREAMS: dict[str, list[str] | None] = {
    "directory": None,
    "sql": None,
    "bfcl": ["VehicleControlAPI", "GorillaFileSystem"],
}
"""Name -> templates; None: all."""
ARMS = {
    "none": "no memory",
    "bank": "ReasoningBank",
    "placebo": "placebo",
    "raw": "whole cases",
    "true_verdicts": "true verdicts",
}
"""Arm -> its name in the picture."""
WINDOW = 8
"""Tasks per point of a curve: every service of ``directory`` once."""


def screens(program: ReasoningBank, names: Sequence[str]) -> None:
    """Check whether perfect lessons would help."""
    for name in names:
        stream = TaskStream.named(name, n=20, seed=SEED, templates=STREAMS[name])
        print(name, screen(program, stream, folder=EVIDENCE / "screens" / name, on_progress=print, jobs=2), flush=True)


def scaling(program: ReasoningBank, _: Sequence[str]) -> None:
    """One rollout against three (MaTTS, parallel), on other tasks than the evaluation.

    The selector reads what the environment said after each answer, so three rollouts gain something without memory,
    too. The arm "three, no memory" shows how much.
    """
    scaled = MaTTS(program, k=3)
    arms = {
        "none": Arm(program, "none"),
        "three, no memory": Arm(scaled, "none"),
        "one rollout": Arm(program, "bank"),
        "three rollouts": Arm(scaled, "bank"),
    }
    stream = TaskStream.named("directory", n=24, seed=2)
    folder = EVIDENCE / "scaling"
    print(evaluate(arms, stream, orders=3, jobs=8, baseline="one rollout", folder=folder, on_progress=print))


def learning(_: ReasoningBank, __: Sequence[str]) -> None:
    """Draw the share of solved tasks by position in the stream, with intervals: every arm over the same orders."""
    folder = EVIDENCE / "directory"
    report, records = Report.load(folder), read_records(folder)
    stream = TaskStream.named(report.stream, n=report.tasks, seed=report.seed)
    orders = [stream, *(stream.permuted(report.seed + order) for order in range(1, report.orders))]
    solved = {(each.arm, each.order, each.task): each.score for each in records}
    lines = []
    for arm, label in ARMS.items():
        points, reaches = [], []
        for end in range(WINDOW, len(stream) + 1, WINDOW):
            scores: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(orders))
            for number, order in enumerate(orders):
                for task in order[end - WINDOW : end]:
                    run = 0 if report.arms[arm].repeated else number  # one order counts for all
                    scores[task.id][number] = solved[arm, run, task.id]
            found = mean_interval(scores)
            assert found is not None
            points.append((end, found.mean))
            reaches.append((found.low, found.high))
        lines.append(Line(label, points, reaches))
    n = WINDOW * len(orders)
    title = f"tasks done (a point: the last {WINDOW} tasks in {len(orders)} orders, n = {n}; bars: 95 % intervals)"
    x = Axis(title, WINDOW - 1, len(stream) + 1, [(end, str(end)) for end in range(WINDOW, len(stream) + 1, WINDOW)])
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        text = picture(lines, x, SOLVED, main=ARMS["bank"], names=120, scheme=scheme)
        PICTURE.with_stem(PICTURE.stem + suffix).write_text(text)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("screens", "scaling", "picture"))
    parser.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    parser.add_argument("--streams", nargs="*", default=list(STREAMS), choices=STREAMS, help="of the screens")
    options = parser.parse_args()
    part = {"screens": screens, "scaling": scaling, "picture": learning}[options.part]
    part(ReasoningBank(backbones=Backbones(agent=options.model)), options.streams)


if __name__ == "__main__":
    main()
