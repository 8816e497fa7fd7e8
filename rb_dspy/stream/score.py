"""How many tasks were solved, and other numbers: one rule for runs, comparisons, compiles and their records.

A task that broke (its server, its environment or its scoring failed) counts as not solved, so that a program that
breaks on hard tasks does not look better than one that fails them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rb_dspy.backbones.usage import price_of, total_usage
from rb_dspy.schema import RoleUsage


class Score(NamedTuple):
    """Solved tasks: ``6 of 8 solved, 2 broke``."""

    solved: int
    scored: int
    """Tasks that count."""
    broke: int
    """Of these, tasks that broke, which count as not solved."""

    @classmethod
    def of(cls, tasks: Iterable[tuple[bool | None, bool]]) -> Score:
        """The score of ``(solved, broke)`` of each task.

        Tasks without ground truth do not count. If no other task was done, one that broke tells nothing either.
        """
        every = list(tasks)
        broke = sum(each for _, each in every)
        known = [bool(solved) for solved, each in every if solved is not None and not each]
        if not known and broke < len(every):
            return cls(0, 0, 0)
        return cls(sum(known), len(known) + broke, broke)

    def __str__(self) -> str:
        broke = f", {self.broke} broke" if self.broke else ""
        return f"{self.solved} of {self.scored} solved{broke}" if self.scored else "no task was scored by ground truth"


def numbers(rows: Iterable[dict[str, Any]], models: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Counts and rates over rows (``TaskResult.row``); a rate is None if there is nothing to count.

    With ``models``, role -> model, also ``cost`` in US dollars, None if the price of a model is unknown.
    """
    rows = list(rows)
    usages = [{role: RoleUsage(**used) for role, used in row.get("usage", {}).items()} for row in rows if models]
    score = Score.of((row["solved"], broke(row)) for row in rows)
    judged = [row for row in rows if row["judge_agrees"] is not None]
    agreements = sum(row["judge_agrees"] for row in judged)
    successes = sum(row["solved"] for row in judged)
    steps = [row["steps"] for row in rows if row["steps"] is not None]
    shown, beyond = (
        [row[name] for row in rows if row.get(name) is not None] for name in ("tokens_shown", "tokens_beyond")
    )
    return {
        "tasks": len(rows),
        "scored": score.scored,
        "solved": score.solved,
        "success_rate": _rate(score.solved, score.scored),
        "broke": score.broke,
        "judged": len(judged),
        "agreements": agreements,
        "judge_agreement": _rate(agreements, len(judged)),
        "judge_base_rate": _rate(max(successes, len(judged) - successes), len(judged)),
        "unknown_verdicts": sum(row["verdict"] == "unknown" for row in rows),
        "errors": sum(bool(row["error"]) for row in rows),
        "resumed": sum(row["resumed"] for row in rows),
        "cut_off": sum(row["stop_reason"] in ("max_steps", "context") for row in rows),
        "mean_steps": _rate(sum(steps), len(steps)),
        "shown": sum(bool(row["recalled"]) for row in rows),
        "memory_errors": sum(bool(row.get("memory_error")) for row in rows),
        "tokens_shown": _rate(sum(shown), len(shown)),
        "tokens_beyond": _rate(sum(beyond), len(beyond)),
        "learned": sum(len(row["learned"]) for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "cost": price_of(total_usage(usages), models) if models else None,
    }


def broke(row: dict[str, Any]) -> bool:
    """Whether the task of a row broke: it counts as not solved."""
    return bool(row["error"]) and row.get("reward") is None


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
