"""Toy environments: small worlds whose rules are known, for tests, examples and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Outcome, Task


class Corridor(Environment):
    """Walk to the end of a corridor: ``length`` times ``forward``. Lists its valid actions.

    ``env_args``: ``length`` (default 3). Reward: the fraction of the corridor that was walked.
    """

    action_rules = "one of the listed actions"

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.position = 0

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Corridor:
        """Make one for ``task``; an ``EnvironmentFactory``."""
        length = task.env_args.get("length", 3)
        return cls(int(str(length)))

    def reset(self, task: Task) -> str:
        self.position = 0
        return f"You stand at the start of a corridor of {self.length} rooms."

    def step(self, action: str) -> tuple[str, bool]:
        if action == "forward":
            self.position += 1
        elif action == "back":
            self.position = max(0, self.position - 1)
        elif action != "wait":
            return f"Nothing happens: {action!r} is not possible here.", False
        done = self.position >= self.length
        return ("You are through." if done else f"You are in room {self.position}."), done

    def reopen(self) -> str | None:
        return None if self.position >= self.length else "The corridor goes on."

    def valid_actions(self) -> Sequence[str] | None:
        return ("forward", "back", "wait")

    def outcome(self) -> Outcome:
        return Outcome(reward=self.position / self.length, success=self.position >= self.length)


class Lock(Environment):
    """Answer with the code of a lock. All locks of one ``maker`` open in the same way, so a lesson helps on the next.

    ``env_args``: ``code``, which is not in the instruction; ``presses`` (default 1), actions of which the last is the
    answer; ``tells`` (default False), whether a lock that stays shut shows its code.
    """

    action_rules = "the code, nothing else"

    def __init__(self, code: str, *, presses: int = 1, tells: bool = False) -> None:
        self._code = code
        self._left = presses
        self._tells = tells
        self._answer: str | None = None

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Lock:
        """Make one for ``task``; an ``EnvironmentFactory``."""
        args = task.env_args
        return cls(str(args["code"]), presses=int(str(args.get("presses", 1))), tells=bool(args.get("tells")))

    def reset(self, task: Task) -> str:
        return "The keypad waits for a code."

    def step(self, action: str) -> tuple[str, bool]:
        self._left -= 1
        if self._left > 0:
            return f"The keypad beeps, {self._left} to go.", False
        self._answer = action
        shut = f"It stays shut. Its code is {self._code}." if self._tells else "It stays shut."
        return (f"It opens with {action}." if action == self._code else shut), True

    def answer(self) -> str | None:
        return self._answer

    def outcome(self) -> Outcome:
        success = self._answer == self._code
        return Outcome(reward=float(success), success=success, info={"code": self._code})


class Doors(Environment):
    """A hall with doors and a chest: open two doors, and the chest opens if the right one is among them.

    One transcript does not tell which of its two doors that was; attempts that share one door and differ in the other
    do. ``env_args``: ``right``, the name of a door, which is not in the instruction.
    """

    action_rules = "one of the listed actions"
    names = ("red", "green", "blue", "yellow")

    def __init__(self, right: str) -> None:
        self._right = right
        self._opened: list[str] = []

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Doors:
        """Make one for ``task``; an ``EnvironmentFactory``."""
        return cls(str(task.env_args["right"]))

    def reset(self, task: Task) -> str:
        self._opened = []
        return f"A hall with {len(self.names)} doors, all shut, and a locked chest."

    def step(self, action: str) -> tuple[str, bool]:
        if action not in self.valid_actions():
            return f"Nothing happens: {action!r} is not possible here.", False
        self._opened.append(action.split()[2])
        if not self._done:
            return "The door is open. The chest is locked.", False
        chest = "It opens." if self._right in self._opened else "It stays shut."
        return f"The door is open, and the hall locks all others. The chest: {chest}", True

    def valid_actions(self) -> Sequence[str]:
        return () if self._done else tuple(f"open the {n} door" for n in self.names if n not in self._opened)

    def outcome(self) -> Outcome:
        success = self._done and self._right in self._opened
        return Outcome(reward=float(success), success=success, info={"right": self._right})

    @property
    def _done(self) -> bool:
        return len(self._opened) == 2


Method = Literal["reset", "step", "reopen", "valid_actions", "answer", "outcome", "close"]


class Faulty:
    """Wraps an environment so that it fails or returns very long observations.

    Its method ``at`` raises ``error`` from call number ``after`` + 1 on; ``padding`` characters follow every
    observation.
    """

    def __init__(
        self,
        inner: Environment,
        *,
        at: Method = "step",
        after: int = 0,
        error: BaseException | None = None,
        padding: int = 0,
    ) -> None:
        self._inner = inner
        self._at = at
        self._calls_left = after
        self._error = error
        self._padding = padding

    @classmethod
    def of(cls, environments: EnvironmentFactory, **fault: Any) -> EnvironmentFactory:
        """Return an ``EnvironmentFactory``: the environments of another one, each with this fault."""
        return lambda task, rollout_id: cls(environments(task, rollout_id), **fault)

    @property
    def action_rules(self) -> str:
        return self._inner.action_rules

    def reset(self, task: Task) -> str:
        return self._padded(self._for("reset").reset(task))

    def step(self, action: str) -> tuple[str, bool]:
        observation, done = self._for("step").step(action)
        return self._padded(observation), done

    def reopen(self) -> str | None:
        observation = getattr(self._for("reopen"), "reopen", lambda: None)()
        return None if observation is None else self._padded(observation)

    def valid_actions(self) -> Sequence[str] | None:
        return self._for("valid_actions").valid_actions()

    def answer(self) -> str | None:
        return self._for("answer").answer()

    def outcome(self) -> Outcome | None:
        return self._for("outcome").outcome()

    def close(self) -> None:
        self._for("close").close()

    def _for(self, method: Method) -> Environment:
        """Return the other environment for a call of ``method``, or raise the error."""
        if method == self._at:
            self._calls_left -= 1
            if self._calls_left < 0 and self._error is not None:
                raise self._error
        return self._inner

    def _padded(self, observation: str) -> str:
        return observation + "x" * self._padding
