"""The end of learning from rollouts: the experience is in the bank, or it is noted there why not."""

from __future__ import annotations

from rb_dspy.bank import Ingest
from rb_dspy.errors import RBError
from rb_dspy.schema import Experience
from rb_dspy.steps.events import Appended, Withheld, emit


def appended(ingest: Ingest) -> Experience:
    """The experience that the bank now holds, durably; without lessons that somebody took away from it before."""
    experience = ingest.admitted(again=False)
    if ingest.withheld:
        emit(Withheld(experience.task, tuple(["retracted" for _ in ingest.withheld])))
    emit(Appended(experience.task, experience))
    return experience


def note(ingest: Ingest, exc: Exception) -> None:
    """Say on rollouts that wait why they could not be learned from."""
    try:
        ingest.failed(f"not learned from: {exc}")
    except RBError as also:
        exc.add_note(f"nor could that be noted: {also}")
