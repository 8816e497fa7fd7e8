"""What makes arms unequal besides their memory: what they learn from, and whether they repeat tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rb_dspy.memories import Signal

if TYPE_CHECKING:
    from rb_dspy.evaluation.report import ArmReport

_LEARNS: dict[Signal, str] = {
    "judge": "from the judge",
    "outcome": "from the true outcome",
    "none": "without feedback",
}


def refusal(arms: Mapping[str, ArmReport], baseline: str, arm: str) -> str:
    """Why there is no verdict on two arms: both learn, and from different signals. Empty if there may be one."""
    signals = _signals({name: arms[name] for name in (baseline, arm)})
    if len(set(signals.values())) < 2:
        return ""
    both = " and ".join(f"{name} learns {_LEARNS[signal]}" for name, signal in signals.items())
    return f"no verdict, because {both}; --unequal-signals (in Python: unequal_signals=True) gives one"


def warnings(arms: Mapping[str, ArmReport]) -> Iterator[str]:
    """What makes arms unequal, and arms that say nothing about memory."""
    signals = _signals(arms)
    if len(set(signals.values())) > 1:
        parts = [
            f"{', '.join(name for name, each in signals.items() if each == signal)} {words}"
            for signal, words in _LEARNS.items()
            if signal in signals.values()
        ]
        yield f"The arms learn from different signals: {'; '.join(parts)}."
    learning = {name: arm for name, arm in arms.items() if arm.learns}
    repeating = [name for name, arm in learning.items() if arm.repeats_tasks]
    if repeating and len(repeating) < len(learning):
        yield f"Only {', '.join(repeating)} may show an agent what was learned from its own task."
    for name, arm in learning.items():
        if not arm.shown:
            what = "learned lessons and showed none" if arm.learned else "learned nothing"
            yield f"{name} {what}, so it says nothing about memory."


def _signals(arms: Mapping[str, ArmReport]) -> dict[str, Signal]:
    """Arm -> what it learns from, of those that learn."""
    return {name: arm.signal for name, arm in arms.items() if arm.learns and arm.signal}
