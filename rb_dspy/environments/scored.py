"""Ground truth for the scorer, out of reach of everything else that runs in an episode."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NoReturn, Protocol

from rb_dspy.environments.factory import make_environment
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.protocols import Environment, EnvironmentFactory, Reopens, is_instant
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
        self._outcomes: dict[tuple[str, str], list[Outcome | None]] = {}
        self._broke: dict[tuple[str, str], str] = {}

    def __call__(self, task: Task, rollout_id: str) -> Environment:
        reached: list[Outcome | None] = []

        def keep(outcome: Outcome | None, *, closed: bool, broke: str = "") -> None:
            reached.append(outcome)
            if closed:
                with self._lock:
                    self._outcomes[task.id, rollout_id] = reached
                    self._broke[task.id, rollout_id] = broke

        return _Sealed(self._factory(task, rollout_id), keep)

    def outcome(self, task_id: str, rollout_id: str) -> Outcome | None:
        """What the rollout reached; None where it is not closed yet, never began, or its environment broke."""
        reached = self.passes(task_id, rollout_id)
        return reached[-1] if reached else None

    def broke(self, task_id: str, rollout_id: str) -> str:
        """Why a rollout that came to its end has no outcome: what its environment's ``outcome`` raised. Else empty."""
        with self._lock:
            return self._broke.get((task_id, rollout_id), "")

    def truth(self, task_id: str, rollout_id: str) -> Outcome | None:
        """``outcome``. Raises ``InfrastructureError`` where scoring ``broke``: nobody is to take that for unknown."""
        why = self.broke(task_id, rollout_id)
        if why:
            raise InfrastructureError(f"task {task_id}: {why}")
        return self.outcome(task_id, rollout_id)

    def passes(self, task_id: str, rollout_id: str) -> tuple[Outcome | None, ...]:
        """What it had reached each time it ended: more than once where it was reopened. Empty before it is closed."""
        with self._lock:
            return tuple(self._outcomes.get((task_id, rollout_id), ()))


class _Keep(Protocol):
    def __call__(self, outcome: Outcome | None, *, closed: bool, broke: str = "") -> None: ...


class _Sealed:
    """An environment as a program may see it: everything but its outcome."""

    def __init__(self, inner: Environment, keep: _Keep) -> None:
        self._inner = inner
        self._keep = keep
        self._whole = False
        """An episode was started, and every call since came back: its outcome means something."""
        self._closed = False
        self._reached: Outcome | None = None
        """What had been reached when going on broke."""

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
        whole, self._whole = self._whole, False
        answer = self._inner.step(action)
        self._whole = whole
        return answer

    def valid_actions(self) -> Sequence[str] | None:
        return self._inner.valid_actions()

    def answer(self) -> str | None:
        return self._inner.answer()

    def outcome(self) -> NoReturn:
        raise RBError("ground truth is for the scorer: ask ScoredEnvironments.outcome after the environment is closed")

    def reopen(self) -> str | None:
        """Report what was reached up to here, and go on where the environment can."""
        if not isinstance(self._inner, Reopens):
            return None
        whole, self._whole = self._whole, False
        reached = self._reached = self._told() if whole else None
        observation = self._inner.reopen()
        self._whole, self._reached = whole, None
        if observation is not None:
            self._keep(reached, closed=False)
        return observation

    def close(self) -> None:
        """Report the outcome, or what it raised, and close; a second call does nothing.

        A broken episode reports None.
        """
        if self._closed:
            return
        self._closed = True
        outcome, broke = self._reached, ""
        try:
            if self._whole:
                outcome = self._told()
        except Exception as exc:  # noqa: BLE001 (an environment may raise anything; it is the task's error)
            broke = f"the environment's outcome broke: {one_line(exc, 300, kind=True)}"
        finally:
            self._keep(outcome, closed=True, broke=broke)
            self._inner.close()

    def _told(self) -> Outcome | None:
        outcome: object = self._inner.outcome()
        if not isinstance(outcome, Outcome | None):
            raise TypeError(f"its outcome is {outcome!r}; expected an Outcome, or None where nobody knows it")
        return outcome
