"""What is learned from the rollouts of a task together, and which of them is handed in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rb_dspy.bank import Ingest
from rb_dspy.bank.stages import same_rollouts
from rb_dspy.config import MattsMode
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts.rollouts import Ruling
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Polarity, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Distilled, Select, Selection
from rb_dspy.steps.ask import Do, Routine, Wanted
from rb_dspy.steps.judge import Judging
from rb_dspy.steps.wanted import Call, Result, Together, values

Trajectories = tuple[Trajectory, ...]


@dataclass(frozen=True)
class Known:
    """What is known of rollouts before they are learned from."""

    rollouts: Trajectories = ()
    verdicts: Sequence[Ruling] = ()
    """One for each."""
    results: Mapping[Hashable, Result] = field(default_factory=dict)
    """What ``Lessons.early`` named: what each step gave that needs no verdicts, or what it raised."""


@dataclass(frozen=True)
class Lessons:
    """From rollouts to drafts; what a step gave is kept in the bank before anything that rests on it begins. Verdicts
    that are all there are kept before anything else is asked.

    ============  ===============================================  =========================
    mode          what the lessons are drawn from                  what is handed in
    ============  ===============================================  =========================
    parallel      all rollouts, contrasted                         the selector's choice
    vanilla       each rollout alone                               the selector's choice
    best_of_n     the one that is handed in                        the selector's choice
    sequential    the trajectory; several attempts are contrasted  the last attempt to answer
    ============  ===============================================  =========================

    A single rollout is distilled alone in every mode. What needs no verdicts is asked for while judging goes on. What
    breaks for some rollouts only, judging or distilling, costs no other one.
    """

    mode: MattsMode
    judge: JudgeProtocol
    distill: Distill
    contrast: Contrast
    select: Select
    at_once: int | None = None
    """Judges, and other calls, at the same time; None: all that wait for no other."""

    @property
    def needs_verdicts(self) -> bool:
        """Whether anything but the bank waits for the judge, so that rollouts should be judged as they end."""
        return self.mode in ("vanilla", "best_of_n") or self.contrast.config.labels or self.select.config.verdicts

    @property
    def chooses_by_verdicts(self) -> bool:
        """Whether the selector, where there is one, reads verdicts."""
        return self.mode != "sequential" and self.select.config.verdicts

    def early(self, task: Task, rollouts: Trajectories) -> dict[Hashable, Wanted]:
        """Wanted: what needs no verdicts, by name, so that it need not wait for the judge. First what takes longest."""
        jobs: dict[Hashable, Wanted] = {}
        if self._contrasts(rollouts) and not self.contrast.config.labels:
            jobs["contrast"] = Call(self.contrast, (task, rollouts))
        if self._selects(rollouts) and not self.select.config.verdicts:
            jobs["select"] = Call(self.select, (task, rollouts))
        return jobs

    def learned(self, ingest: Ingest, known: Known) -> Routine[tuple[Trajectories, Selection | None]]:
        """Judge, draw lessons, select: what is missing of it. Gives what was chosen from, and the choice.

        None for a choice that is still to be made, since the lessons had been drawn before. What is ``known`` of other
        rollouts, whose place these took, counts for nothing.
        """
        chosen_from, selection = ingest.state.trajectories, None
        while ingest.drafts is None:
            chosen_from = ingest.state.trajectories
            of_these = known if _same(known.rollouts, chosen_from) else Known(verdicts=[None] * len(chosen_from))
            selection = yield from self._learned_from(ingest, chosen_from, of_these)
        return chosen_from, selection

    def chosen(self, task: Task, rollouts: Trajectories, verdicts: Sequence[Verdict]) -> Routine[Selection]:
        """Which rollout is handed in."""
        if not self._selects(rollouts):
            return self._last(rollouts)
        selection: Selection = yield Call(self.select, (task, rollouts, verdicts))
        return selection

    def _learned_from(self, ingest: Ingest, rollouts: Trajectories, known: Known) -> Routine[Selection | None]:
        task = ingest.task.without_ground_truth()
        given: Sequence[Ruling] = ingest.verdicts or known.verdicts
        done: dict[Hashable, Any] = dict(known.results)
        early = self.early(task, rollouts)
        jobs: dict[Hashable, Wanted] = {name: job for name, job in early.items() if name not in done}
        unjudged = _unjudged(given)
        if jobs and not unjudged and ingest.verdicts is None:  # paid for, and what is asked now may be interrupted
            kept = yield Do("keeping the verdicts", partial(ingest.judged, all_judged(given)))
            if kept is None or ingest.state.trajectories != rollouts:
                return None
        jobs |= {("judge", i): Judging(self.judge, task, rollouts[i]) for i in unjudged}
        done |= yield from self._together(jobs)
        verdicts = all_judged([done.get(("judge", i), each) for i, each in enumerate(given)])
        said = done.get("contrast")
        if isinstance(said, Distilled):  # both came at once, so one write keeps them
            yield _kept(ingest, said, None, verdicts)
        elif ingest.verdicts is None:
            yield Do("keeping the verdicts", partial(ingest.judged, verdicts))
        kept = ingest.verdicts
        if kept is None or ingest.state.trajectories != rollouts:
            return None
        jobs = {}
        if self._contrasts(rollouts) and "contrast" not in done:
            jobs["contrast"] = Call(self.contrast, (task, rollouts, kept))
        if self._selects(rollouts) and "select" not in done:
            jobs["select"] = Call(self.select, (task, rollouts, kept))
        if not self._contrasts(rollouts) and (self.mode != "best_of_n" or len(rollouts) == 1):
            jobs |= {("distill", i): Call(self.distill, (task, rollouts[i], kept[i], i)) for i in range(len(rollouts))}
        done |= yield from self._together(jobs)
        if self.mode == "best_of_n" and len(rollouts) > 1:
            (selected,) = values([done["select"]])
            best = selected.index
            done |= yield from self._together(
                {("distill", best): Call(self.distill, (task, rollouts[best], kept[best]))}
            )
        if "contrast" in done:
            (said,) = values([done["contrast"]])
            polarity = None
        else:
            alone = {i: done["distill", i] for i in range(len(rollouts)) if ("distill", i) in done}
            said, polarity = _joined(alone, rollouts, kept)
        if ingest.drafts is None:
            yield _kept(ingest, said, polarity)
        if not self._selects(rollouts):
            return self._last(rollouts)
        (selection,) = values([done["select"]])  # last, so that a selector that breaks costs no lesson
        return selection  # type: ignore[no-any-return]

    def _together(self, jobs: Mapping[Hashable, Wanted]) -> Routine[dict[Any, Any]]:
        """The result of each job by its name."""
        if not jobs:
            return {}
        if self.at_once is not None and "select" in jobs and len(jobs) > 1 and self.select.config.orders > 1:
            # A selector that asks in several orders takes all places by itself.
            others = yield from self._together({name: job for name, job in jobs.items() if name != "select"})
            return others | (yield from self._together({"select": jobs["select"]}))
        results = yield Together(list(jobs.values()), self.at_once)
        return dict(zip(jobs, results, strict=True))

    def _last(self, rollouts: Trajectories) -> Selection:
        """The last attempt, or rather the last with an answer, where any gave one, or that was not broken off."""
        whole = [i for i, rollout in enumerate(rollouts) if rollout.stop_reason not in ("unreadable", "context")]
        answered = [i for i, rollout in enumerate(rollouts) if rollout.answer is not None]
        return Selection((answered or whole or [len(rollouts) - 1])[-1])

    def _contrasts(self, rollouts: Trajectories) -> bool:
        return len(rollouts) > 1 and self.mode in ("parallel", "sequential")

    def _selects(self, rollouts: Trajectories) -> bool:
        return len(rollouts) > 1 and self.mode != "sequential"


def _same(one: Trajectories, other: Trajectories) -> bool:
    """Whether the same happened in both, one by one; what they used counts for nothing."""
    return [each.rollout_id for each in one] == [each.rollout_id for each in other] and same_rollouts(one, other)


def _kept(
    ingest: Ingest, said: Distilled, polarity: Polarity | None, verdicts: Sequence[Verdict] | None = None
) -> Wanted:
    keep = partial(ingest.distilled, said.drafts, verdicts=verdicts, distiller=said.distiller, note=said.note)
    return Do("keeping the lessons", partial(keep, polarity=polarity))


def _unjudged(given: Sequence[Ruling]) -> list[int]:
    """Who is to be judged: also where the judge broke, if it answered others; else it would only break once more."""
    answers = any(isinstance(each, Verdict) for each in given)
    return [i for i, each in enumerate(given) if each is None or (answers and not isinstance(each, Verdict))]


def all_judged(results: Sequence[Any]) -> list[Verdict]:
    """The verdicts. A judge that broke on some rollouts only has said nothing about those: unknown."""
    if not any(isinstance(result, Verdict) for result in results):
        return values(results)
    return told(results)


def told(results: Sequence[Any]) -> list[Verdict]:
    """The verdicts, unknown for each rollout on which the judge broke. Raises what is no such thing."""
    lost = [isinstance(result, InfrastructureError) for result in results]
    return values(
        [
            Verdict(label="unknown", reasons=f"not judged: {result}") if broke else result
            for result, broke in zip(results, lost, strict=True)
        ]
    )


def _joined(
    results: Mapping[int, Any], rollouts: Trajectories, verdicts: Sequence[Verdict]
) -> tuple[Distilled, Polarity | None]:
    """What distilling some of the rollouts gave, as one, and its polarity where all lessons have the same.

    A call that broke costs its own lessons only, and the note tells; where all broke, the first raises.
    """
    if all(isinstance(result, Exception) for result in results.values()):
        values(list(results.values()))
    found: dict[int, Distilled] = {}
    for i, result in results.items():
        if isinstance(result, InfrastructureError):
            found[i] = Distilled(note=f"not distilled: {result}")
        else:
            (found[i],) = values([result])
    several = len(found) > 1
    notes = [f"rollout {rollouts[i].rollout_id}: {each.note}" if several else each.note for i, each in found.items()]
    drafts = dict.fromkeys(draft for each in found.values() for draft in each.drafts)
    distillers = dict.fromkeys(each.distiller for each in found.values() if each.distiller)
    polarities: set[Polarity] = {
        "success" if verdicts[i].label == "success" else "failure" for i, each in found.items() if each.drafts
    }
    note = "; ".join(note for note, each in zip(notes, found.values(), strict=True) if each.note)
    dropped = tuple(why for each in found.values() for why in each.dropped)
    said = Distilled(tuple(drafts), note, ", ".join(distillers), dropped)
    return said, polarities.pop() if len(polarities) == 1 else None
