"""Make the environment of a task, and hide its outcome from everything but the scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from rb_dspy.errors import InfrastructureError, RBError, describe_error
from rb_dspy.plugins import environment_family
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Outcome, Task, Trajectory


def make_environment(task: Task, rollout_id: str) -> Environment:  # noqa: ARG001 (the call shape of a factory)
    """Make a fresh environment of the family ``task.env``, the same for every rollout.

    Raises ``InputError`` if the family is not installed, ``MissingDependency`` if it cannot run here.
    """
    return environment_family(task.env).make(task)


class Ended(NamedTuple):
    """How a rollout ended."""

    passes: tuple[Outcome | None, ...] = ()
    """The outcome each time the episode ended: several if it was reopened, none before it is closed."""
    error: str = ""
    """The error of the environment's ``outcome`` in one line."""


class ScoredEnvironments:
    """An ``EnvironmentFactory`` that hides outcomes from the program and stores them when environments are closed.

    Pass it to a program instead of the plain factory and read ``outcome`` afterwards. A rollout that runs again under
    the same ids replaces the earlier result. Safe to use from several threads.

    Args:
        factory: Makes the environments.
        ended: Results of earlier rollouts: task id and rollout id -> how it ended.
        on_end: Called with task id, rollout id and result when an environment is closed, in the rollout's thread.
    """

    def __init__(
        self,
        factory: EnvironmentFactory = make_environment,
        ended: Mapping[tuple[str, str], Ended] | None = None,
        on_end: Callable[[str, str, Ended], object] = lambda *_: None,
    ) -> None:
        self._factory = factory
        self._ended = dict(ended or {})
        self._on_end = on_end

    def __call__(self, task: Task, rollout_id: str) -> Environment:
        def store(passes: Sequence[Outcome | None], error: str) -> None:
            ended = self._ended[task.id, rollout_id] = Ended(tuple(passes), error)
            self._on_end(task.id, rollout_id, ended)

        return _Sealed(self._factory(task, rollout_id), store)

    def outcome(self, task_id: str, rollout_id: str) -> Outcome | None:
        """Return the outcome when the episode last ended; None if it is unknown, not closed yet, or broken."""
        return next(reversed(self.passes(task_id, rollout_id)), None)

    def passes(self, task_id: str, rollout_id: str) -> tuple[Outcome | None, ...]:
        """Return ``Ended.passes``."""
        return self._ended.get((task_id, rollout_id), Ended()).passes

    def broke(self, task_id: str, rollout_id: str) -> str:
        """Return ``Ended.error``; empty if there is none."""
        return self._ended.get((task_id, rollout_id), Ended()).error

    def rollout_of(self, task_id: str, trajectory: Trajectory) -> str:
        """Return the id of the environment that ``trajectory`` was done in.

        An agent of the user's own may not pass it on; then it is that of the task's only rollout, if there is one.
        """
        ids = [rollout_id for task, rollout_id in self._ended if task == task_id]
        return ids[0] if len(ids) == 1 else trajectory.rollout_id

    def truth(self, task_id: str, rollout_id: str) -> Outcome | None:
        """Return ``outcome``. Raises ``InfrastructureError`` if there is none because scoring failed."""
        outcome, error = self.outcome(task_id, rollout_id), self.broke(task_id, rollout_id)
        if outcome is None and error:
            raise InfrastructureError(f"task {task_id}: {error}")
        return outcome


class _Sealed:
    """An environment without its outcome, which is stored when it is closed.

    The first pass always counts. One after ``reopen`` counts if the agent ended it or submitted an answer.
    """

    def __init__(self, inner: Environment, store: Callable[[Sequence[Outcome | None], str], None]) -> None:
        self._inner = inner
        self._store = store
        self._passes: list[Outcome | None] = []
        self._error = ""
        self._intact = False  # the episode was started, and no call raised
        self._counts = True
        self._closed = False

    @property
    def action_rules(self) -> str:
        return self._inner.action_rules

    @property
    def action_pattern(self) -> str | None:
        return getattr(self._inner, "action_pattern", None)

    def reset(self, task: Task) -> str:
        self._intact = True
        observation: str = self._call(self._inner.reset, task)
        return observation

    def step(self, action: str) -> tuple[str, bool]:
        result: tuple[str, bool] = self._call(self._inner.step, action)
        self._counts = self._counts or (isinstance(result, tuple) and len(result) == 2 and bool(result[1]))
        return result

    def valid_actions(self) -> Sequence[str] | None:
        return self._inner.valid_actions()

    def answer(self) -> str | None:
        self._counts = True
        return self._inner.answer()

    def outcome(self) -> NoReturn:
        raise RBError("outcome() is for the scorer; call ScoredEnvironments.outcome after the environment is closed")

    def reopen(self) -> str | None:
        """Store the outcome so far and let the episode continue, if the environment can."""
        reopen = getattr(self._inner, "reopen", None)
        if reopen is None:
            return None
        self._end_pass()
        self._counts = False
        observation: str | None = self._call(reopen)
        return observation

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._counts:
                self._end_pass()
            self._store(self._passes, self._error)
        finally:
            self._inner.close()

    def _call(self, method: Callable[..., Any], *arguments: object) -> Any:
        """Call the environment. If it raises, the outcome is unknown from then on."""
        try:
            return method(*arguments)
        except BaseException:
            self._intact = False
            raise

    def _end_pass(self) -> None:
        outcome: object = None
        try:
            outcome = self._inner.outcome() if self._intact else None
            if not isinstance(outcome, Outcome | None):
                raise TypeError(f"got {type(outcome).__name__}; expected Outcome(reward=, success=) or None")
        except Exception as exc:  # noqa: BLE001 (an environment may raise anything; the task reports it)
            outcome = None
            self._error = self._error or f"outcome() failed: {describe_error(exc, 300)}"
        self._passes.append(outcome)
