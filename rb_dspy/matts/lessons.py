"""What is learned from the rollouts of a task together, and which of them is handed in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rb_dspy.bank import Ingest
from rb_dspy.config import MattsMode
from rb_dspy.protocols import Judge as JudgeProtocol
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Distilled, Select, Selection
from rb_dspy.steps.ask import Do, Routine, Wanted
from rb_dspy.steps.judge import Judging
from rb_dspy.steps.wanted import Call, Together, values

Rollouts = tuple[Trajectory, ...]


@dataclass(frozen=True)
class Lessons:
    """From rollouts that the bank keeps to drafts, each step kept before the next begins.

    ============  ===============================================  ====================
    mode          what the lessons are drawn from                  what is handed in
    ============  ===============================================  ====================
    parallel      all rollouts, contrasted                         the selector's choice
    vanilla       each rollout alone                               the selector's choice
    best_of_n     the one that is handed in                        the selector's choice
    sequential    the trajectory; several attempts are contrasted  the last attempt
    ============  ===============================================  ====================

    A single rollout is distilled alone in every mode. What needs no verdicts is asked for while judging goes on.
    """

    mode: MattsMode
    judge: JudgeProtocol
    distill: Distill
    contrast: Contrast
    select: Select

    @property
    def needs_verdicts(self) -> bool:
        """Whether anything but the bank waits for the judge, so that rollouts should be judged as they end."""
        return self.mode in ("vanilla", "best_of_n") or self.contrast.config.labels or self.select.config.verdicts

    def learned(self, ingest: Ingest, known: Sequence[Verdict | None]) -> Routine[tuple[Rollouts, Selection | None]]:
        """Judge, draw lessons, select: what is missing of it. Gives what was chosen from, and the choice.

        ``known``: verdicts that there are already. None for a choice that is still to be made, since the lessons had
        been drawn before.
        """
        chosen_from, selection = ingest.state.trajectories, None
        while ingest.drafts is None:
            chosen_from = ingest.state.trajectories
            selection = yield from self._learned_from(ingest, chosen_from, known)
            known = [None] * len(ingest.state.trajectories)  # another learner's, where it took the place of this one
        return chosen_from, selection

    def chosen(self, task: Task, rollouts: Rollouts, verdicts: Sequence[Verdict]) -> Routine[Selection]:
        """Which rollout is handed in."""
        if not self._selects(rollouts):
            return Selection(len(rollouts) - 1)
        selection: Selection = yield Call(self.select, (task, rollouts, verdicts))
        return selection

    def _learned_from(
        self, ingest: Ingest, rollouts: Rollouts, known: Sequence[Verdict | None]
    ) -> Routine[Selection | None]:
        task = ingest.task.without_ground_truth()
        given: Sequence[Verdict | None] = ingest.verdicts or known
        jobs: dict[Hashable, Wanted] = {
            ("judge", i): Judging(self.judge, task, rollouts[i]) for i, verdict in enumerate(given) if verdict is None
        }
        if self._contrasts(rollouts) and not self.contrast.config.labels:
            jobs["contrast"] = Call(self.contrast, (task, rollouts))
        if self._selects(rollouts) and not self.select.config.verdicts:
            jobs["select"] = Call(self.select, (task, rollouts))
        done = yield from _together(jobs)
        verdicts = values([done["judge", i] if verdict is None else verdict for i, verdict in enumerate(given)])
        kept = yield Do("keeping the verdicts", partial(ingest.judged, verdicts))
        if kept is None or ingest.state.trajectories != rollouts:
            return None
        jobs = {}
        if self._contrasts(rollouts) and "contrast" not in done:
            jobs["contrast"] = Call(self.contrast, (task, rollouts, kept))
        if self._selects(rollouts) and "select" not in done:
            jobs["select"] = Call(self.select, (task, rollouts, kept))
        alone = [] if self._contrasts(rollouts) else range(len(rollouts))
        if self.mode != "best_of_n" or len(rollouts) == 1:
            jobs |= {("distill", i): Call(self.distill, (task, rollouts[i], kept[i], i)) for i in alone}
        done |= yield from _together(jobs)
        if self.mode == "best_of_n" and len(rollouts) > 1:
            (selected,) = values([done["select"]])
            best = selected.index
            done |= yield from _together({("distill", best): Call(self.distill, (task, rollouts[best], kept[best]))})
        said = _joined(values([what for name, what in done.items() if name == "contrast" or name[0] == "distill"]))
        keep = partial(ingest.distilled, said.drafts, distiller=said.distiller, note=said.note)
        yield Do("keeping the lessons", keep)
        # Last, so that a selector that breaks costs no lesson.
        if not self._selects(rollouts):
            return Selection(len(rollouts) - 1)
        (selection,) = values([done["select"]])
        return selection  # type: ignore[no-any-return]

    def _contrasts(self, rollouts: Rollouts) -> bool:
        return len(rollouts) > 1 and self.mode in ("parallel", "sequential")

    def _selects(self, rollouts: Rollouts) -> bool:
        return len(rollouts) > 1 and self.mode != "sequential"


def _together(jobs: Mapping[Hashable, Wanted]) -> Routine[dict[Any, Any]]:
    """The outcome of each job by its name."""
    if not jobs:
        return {}
    outcomes = yield Together(list(jobs.values()))
    return dict(zip(jobs, outcomes, strict=True))


def _joined(found: Sequence[Distilled]) -> Distilled:
    """What several distillations gave, as one."""
    if len(found) == 1:
        return found[0]
    drafts = dict.fromkeys(draft for each in found for draft in each.drafts)
    notes = [f"rollout {number}: {each.note}" for number, each in enumerate(found) if each.note]
    distillers = dict.fromkeys(each.distiller for each in found if each.distiller)
    return Distilled(tuple(drafts), "; ".join(notes), ", ".join(distillers))
