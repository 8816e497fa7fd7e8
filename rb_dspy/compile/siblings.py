"""On which tasks lessons are tried out, and how far the agent gets with those without lessons.

Siblings are tasks of the same template. Where all those of an example are solved without lessons, lessons cannot gain
anything, and the example is left out. Whether they are is looked at in rollouts of their own, and their baseline, which
lessons are compared with, is counted in others. Were it the same ones, siblings would be taken for having failed, do
better the next time whatever they are shown, and lessons that an agent ignores would be credited for it: 0.61 where it
solves 80 % of its tasks, and 0.64 where it solves 90 %, in place of 0.50.

Looking takes up to as many rollouts as a baseline does, for each sibling once: it ends with the first rollout that
fails, and where one sibling of an example is known to fail the others are not looked at. In all that is at most twice
what the baselines take, and those of siblings that no example has are not counted. One that does not draw
(``Credit.draws``) does the same again: where it is asked for one rollout, that is both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from rb_dspy.compile.credit import Credit
from rb_dspy.errors import InfrastructureError, UnparseableOutput
from rb_dspy.matts import BankProgram
from rb_dspy.schema import Task
from rb_dspy.stream.program import untold
from rb_dspy.stream.result import TaskResult

T = TypeVar("T")

_BROKE = "the siblings broke"
_DARK = "no other task of its template has ground truth"
_SOLVED = "its siblings are solved without lessons"


class Siblings:
    """Tasks of the same template, and how far the agent gets with them without lessons; nothing is done twice.

    Those of which the runs could not tell how they ended are none of them.
    """

    def __init__(
        self,
        results: Sequence[TaskResult],
        program: BankProgram | None,
        most: int,
        rollouts: int,
        on_done: Callable[[int], None],
    ) -> None:
        """``most``: how many a task has; ``rollouts``: of a baseline. ``on_done`` is called each time that a sibling
        was done, with the number of its rollouts that came to their end."""
        self._tasks = {result.task.id: result.task for result in results}
        self._told = {
            result.task.id for result in results if not untold(result) or result.resumed or any(result.outcomes)
        }
        self._credit = Credit(program, self._count) if program is not None else None
        self._most = most
        self.rollouts = rollouts
        self._on_done = on_done
        self._ended = 0
        self._solved: dict[str, bool | str] = {}
        self._without: dict[str, float | str] = {}
        """Of each that was done; or why there is nothing to be said."""

    def of(self, task: Task) -> tuple[list[Task], list[float]] | str:
        """Siblings and their baselines; or why there are none that could teach."""
        if self._credit is None:
            return "no program was given to do siblings with"
        if not self._most:
            return "no siblings were asked for"
        kin = [
            other
            for other in self._tasks.values()
            if other.template == task.template and other.id != task.id and other.instruction != task.instruction
        ]
        if task.template is None or not kin:
            return "no other task of its template"
        kin = [other for other in kin if other.id in self._told]
        if not kin:
            return _DARK
        chosen = random.Random(f"siblings of {task.id}").sample(kin, min(self._most, len(kin)))
        if why := self._no_room(chosen, self._credit):
            return why
        found = [(other, self._baseline(other, self._credit)) for other in chosen]
        known = [(other, without) for other, without in found if not isinstance(without, str)]
        if not known:
            return _why([without for _, without in found])
        return [other for other, _ in known], [without for _, without in known]

    def _no_room(self, chosen: Sequence[Task], credit: Credit) -> str:
        """Why lessons could not gain anything; empty where they could, which is known with the first that fails."""
        looks = []
        for other in sorted(chosen, key=lambda other: self._solved.get(other.id) is not False):
            looks.append(self._look(other, credit))
            if looks[-1] is False:
                return ""
        return _SOLVED if True in looks else _why(looks)

    def _look(self, task: Task, credit: Credit) -> bool | str:
        """Whether it is solved without lessons, as far as rollouts tell that its baseline knows nothing of."""
        if task.id not in self._solved:
            if self.rollouts == 1 and not credit.draws():
                without = self._baseline(task, credit)
                self._solved[task.id] = without if isinstance(without, str) else without == 1
            else:
                self._solved[task.id] = self._done(task, credit.solved)
        return self._solved[task.id]

    def _baseline(self, task: Task, credit: Credit) -> float | str:
        if isinstance(why := self._solved.get(task.id), str):
            return why
        if task.id not in self._without:
            self._without[task.id] = self._done(task, credit.without)
        return self._without[task.id]

    def _done(self, task: Task, ask: Callable[[Task, int], T | None]) -> T | str:
        before = self._ended
        found: T | str | None
        try:
            found = ask(task, self.rollouts)
        except (InfrastructureError, UnparseableOutput):
            found = _BROKE
        self._on_done(self._ended - before)
        return _DARK if found is None else found

    def _count(self) -> None:
        self._ended += 1


def _why(found: Sequence[object]) -> str:
    return next(why for why in (_BROKE, _DARK) if why in found)
