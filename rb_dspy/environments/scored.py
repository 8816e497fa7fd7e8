"""Ground truth for the scorer, out of reach of everything else that runs in an episode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from rb_dspy.environments.factory import make_environment
from rb_dspy.errors import RBError
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Outcome, Task


class ScoredEnvironments:
    """An ``EnvironmentFactory`` whose environments report their outcome here when they are closed.

    Hand it to a program in place of the plain factory, and read ``outcome`` afterwards. Safe to use from several
    threads. A rollout that is run again under the same ids replaces the earlier outcome.
    """

    def __init__(self, factory: EnvironmentFactory = make_environment) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._outcomes: dict[tuple[str, str], Outcome | None] = {}

    def __call__(self, task: Task, rollout_id: str) -> Environment:
        def keep(outcome: Outcome | None) -> None:
            with self._lock:
                self._outcomes[task.id, rollout_id] = outcome

        return _Sealed(self._factory(task, rollout_id), keep)

    def outcome(self, task_id: str, rollout_id: str) -> Outcome | None:
        """What the rollout reached; None where it is not closed yet, never began, or its environment broke."""
        with self._lock:
            return self._outcomes.get((task_id, rollout_id))


class _Sealed:
    """An environment as a program may see it: everything but its outcome."""

    def __init__(self, inner: Environment, keep: Callable[[Outcome | None], None]) -> None:
        self.action_rules = inner.action_rules
        self._inner = inner
        self._keep = keep
        self._whole = False
        """An episode was started, and every call since came back: its outcome means something."""
        self._closed = False

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

    def close(self) -> None:
        """Report the outcome and close; a second call does nothing. A broken episode reports None."""
        if self._closed:
            return
        self._closed = True
        try:
            self._keep(self._inner.outcome() if self._whole else None)
        finally:
            self._inner.close()
