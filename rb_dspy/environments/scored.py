"""Ground truth for the scorer, out of reach of everything else that runs in an episode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from inspect import iscoroutine
from typing import NoReturn

from rb_dspy.environments.factory import make_environment
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.protocols import Environment, EnvironmentFactory, Reopens, is_instant, says_done
from rb_dspy.schema import Outcome, Task
from rb_dspy.wording import one_line


class ScoredEnvironments:
    """An ``EnvironmentFactory`` whose environments report their outcome here when they are closed.

    Hand it to a program in place of the plain factory, and read ``outcome`` afterwards. Safe to use from several
    threads. A rollout that is run again under the same ids replaces the earlier outcome.
    """

    def __init__(self, factory: EnvironmentFactory = make_environment) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._outcomes: dict[tuple[str, str], tuple[Outcome | None, ...]] = {}
        self._broke: dict[tuple[str, str], str] = {}

    def __call__(self, task: Task, rollout_id: str) -> Environment:
        def keep(passes: Sequence[Outcome | None], broke: str) -> None:
            with self._lock:
                self._outcomes[task.id, rollout_id] = tuple(passes)
                self._broke[task.id, rollout_id] = broke

        return _Sealed(self._factory(task, rollout_id), keep)

    def outcome(self, task_id: str, rollout_id: str) -> Outcome | None:
        """What the rollout reached; None where it is not closed yet, never began, or its environment broke.

        Of one that was reopened, what it had reached when it ended last: an agent's later moves, broken off, change
        nothing of what is handed in.
        """
        reached = self.passes(task_id, rollout_id)
        return reached[-1] if reached else None

    def broke(self, task_id: str, rollout_id: str) -> str:
        """What the environment's ``outcome`` raised, at its last end or an earlier one; else empty."""
        with self._lock:
            return self._broke.get((task_id, rollout_id), "")

    def truth(self, task_id: str, rollout_id: str) -> Outcome | None:
        """``outcome``. Raises ``InfrastructureError`` where scoring ``broke``: nobody is to take that for unknown."""
        reached, why = self.outcome(task_id, rollout_id), self.broke(task_id, rollout_id)
        if why and reached is None:
            raise InfrastructureError(f"task {task_id}: {why}")
        return reached

    def passes(self, task_id: str, rollout_id: str) -> tuple[Outcome | None, ...]:
        """What it had reached each time it ended: more than once where it was reopened. Empty before it is closed."""
        with self._lock:
            return self._outcomes.get((task_id, rollout_id), ())


_Keep = Callable[[Sequence[Outcome | None], str], None]
"""Takes what was reached each time an episode ended, and what scoring raised."""


class _Sealed:
    """An environment as a program may see it: everything but its outcome."""

    def __init__(self, inner: Environment, keep: _Keep) -> None:
        self._inner = inner
        self._keep = keep
        self._whole = False
        """An episode was started, and every call since came back: its outcome means something."""
        self._ended = False
        """The last move ended the episode, or what is handed in was read after it: no other was to come."""
        self._passes: list[Outcome | None] = []
        """What had been reached each time the episode ended."""
        self._broke = ""
        self._closed = False

    @property
    def instant(self) -> bool:
        """Scoring is of the environment's calls, too."""
        return is_instant(self._inner)

    @property
    def action_rules(self) -> str:
        """Asked for when they are read: they may be known once the episode has begun only."""
        return self._inner.action_rules

    def reset(self, task: Task) -> str:
        self._whole = False
        observation = self._inner.reset(task)
        self._whole = True
        return observation

    def step(self, action: str) -> tuple[str, bool]:
        whole, self._whole, self._ended = self._whole, False, False
        answer = self._inner.step(action)
        self._whole, self._ended = whole, _over(answer)
        return answer

    def valid_actions(self) -> Sequence[str] | None:
        return self._inner.valid_actions()

    def answer(self) -> str | None:
        self._ended = False
        answer = self._inner.answer()
        self._ended = True
        return answer

    def outcome(self) -> NoReturn:
        raise RBError("ground truth is for the scorer: ask ScoredEnvironments.outcome after the environment is closed")

    def reopen(self) -> str | None:
        """Take down what was reached up to here, and go on where the environment can.

        Before it goes on: should what follows break off, this is what is handed in.
        """
        if not isinstance(self._inner, Reopens):
            return None
        self._ended = False
        self._take_down()
        whole, self._whole = self._whole, False
        observation = self._inner.reopen()
        self._whole = whole
        return observation

    def close(self) -> None:
        """Report what was reached, or what reading it raised, and close; a second call does nothing.

        A broken episode reports None, and one that broke after it was reopened nothing more than before.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._ended or not self._passes:
                self._keep(self._passes, "the environment's outcome has not come back")  # should it hang, for good
                self._take_down()
        finally:
            self._keep(self._passes, self._broke)
            self._inner.close()

    def _take_down(self) -> None:
        outcome = None
        try:
            if self._whole:
                outcome = self._told()
        except Exception as exc:  # noqa: BLE001 (an environment may raise anything; it is the task's error)
            self._broke = self._broke or f"the environment's outcome broke: {one_line(exc, 300, kind=True)}"
        finally:
            self._passes.append(outcome)

    def _told(self) -> Outcome | None:
        outcome: object = self._inner.outcome()
        if iscoroutine(outcome):
            outcome.close()
            raise TypeError("it is async, and environments are not awaited; make it a plain method")
        if not isinstance(outcome, Outcome | None):
            raise TypeError(f"its outcome is {outcome!r}; expected an Outcome, or None where nobody knows it")
        return outcome


def _over(answer: object) -> bool:
    """Whether a step ended the episode; one that gave anything odd did not, and is refused by who asked for it."""
    return isinstance(answer, tuple) and len(answer) == 2 and says_done(answer[1]) is True
