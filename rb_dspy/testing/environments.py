"""Toy environments: small worlds whose rules are known, for tests, examples and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Outcome, Task


class Corridor:
    """Walk to the end of a corridor: ``length`` times ``forward``. Lists its valid actions.

    ``env_args``: ``length`` (default 3). Reward: the part of the way that was walked.
    """

    action_rules = "one of the listed actions"

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.position = 0

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Corridor:
        """An ``EnvironmentFactory``."""
        length = task.env_args.get("length", 3)
        return cls(int(str(length)))

    def reset(self, task: Task) -> str:
        """At the start."""
        self.position = 0
        return f"You stand at the start of a corridor of {self.length} rooms."

    def step(self, action: str) -> tuple[str, bool]:
        """``forward``, ``back`` or ``wait``."""
        if action == "forward":
            self.position += 1
        elif action == "back":
            self.position = max(0, self.position - 1)
        elif action != "wait":
            return f"Nothing happens: {action!r} is not possible here.", False
        done = self.position >= self.length
        return ("You are through." if done else f"You are in room {self.position}."), done

    def reopen(self) -> str | None:
        """Go on, unless the end is reached."""
        return None if self.position >= self.length else "The corridor goes on."

    def valid_actions(self) -> Sequence[str] | None:
        """Always the same three."""
        return ("forward", "back", "wait")

    def answer(self) -> str | None:
        """None is asked for."""
        return None

    def outcome(self) -> Outcome:
        """How far it went."""
        return Outcome(reward=self.position / self.length, success=self.position >= self.length)

    def close(self) -> None:
        """Nothing to release."""


class Lock:
    """Answer with the code of a lock. All locks of one ``maker`` open in the same way, so a lesson helps on the next.

    ``env_args``: ``code``, which the task's text does not tell.
    """

    action_rules = "the code, nothing else"

    def __init__(self, code: str) -> None:
        self._code = code
        self._answer: str | None = None

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Lock:
        """An ``EnvironmentFactory``."""
        return cls(str(task.env_args["code"]))

    def reset(self, task: Task) -> str:
        """A keypad."""
        return "The keypad waits for a code."

    def step(self, action: str) -> tuple[str, bool]:
        """One try."""
        self._answer = action
        return ("It opens." if action == self._code else "It stays shut."), True

    def valid_actions(self) -> Sequence[str] | None:
        """Any text."""
        return None

    def answer(self) -> str | None:
        """The code that was tried."""
        return self._answer

    def outcome(self) -> Outcome:
        """Whether it opened."""
        success = self._answer == self._code
        return Outcome(reward=float(success), success=success, info={"code": self._code})

    def close(self) -> None:
        """Nothing to release."""


class Doors:
    """A hall with doors and a chest: open two doors, and the chest opens if the right one is among them.

    One transcript does not tell which of its two doors that was; attempts that share one door and differ in the other
    do. The ``right`` door is the same in all halls of one maker, so that lesson helps on the next.

    ``env_args``: ``right``, the name of a door, which the task's text does not tell; ``doors``, names (default four).
    """

    action_rules = "one of the listed actions"
    names = ("red", "green", "blue", "yellow")

    def __init__(self, right: str, names: Sequence[str] = names) -> None:
        self._right = right
        self._names = tuple(names)
        self._opened: list[str] = []

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Doors:
        """An ``EnvironmentFactory``."""
        given = task.env_args.get("doors")
        names = tuple(str(name) for name in given) if isinstance(given, list) else cls.names
        return cls(str(task.env_args["right"]), names)

    def reset(self, task: Task) -> str:
        """All doors shut."""
        self._opened = []
        return f"A hall with {len(self._names)} doors, all shut, and a locked chest."

    def step(self, action: str) -> tuple[str, bool]:
        """``open the NAME door``, twice; only the second answer tells about the chest."""
        name = action.removeprefix("open the ").removesuffix(" door")
        if action not in (self.valid_actions() or ()):
            return f"Nothing happens: {action!r} is not possible here.", False
        self._opened.append(name)
        if not self._done:
            return f"The {name} door is open. The chest is locked.", False
        chest = "springs open" if self._right in self._opened else "stays locked"
        return f"The {name} door is open, and the hall locks all others. The chest {chest}.", True

    def valid_actions(self) -> Sequence[str] | None:
        """Every door that is shut; none when two are open."""
        return () if self._done else tuple(f"open the {n} door" for n in self._names if n not in self._opened)

    def answer(self) -> str | None:
        """None is asked for."""
        return None

    def outcome(self) -> Outcome:
        """Whether the chest opened; the reward is all or nothing."""
        success = self._done and self._right in self._opened
        return Outcome(reward=float(success), success=success, info={"right": self._right})

    def close(self) -> None:
        """Nothing to release."""

    @property
    def _done(self) -> bool:
        return len(self._opened) == 2


Method = Literal["reset", "step", "reopen", "valid_actions", "answer", "outcome", "close"]


class Faulty:
    """Another environment that fails, or shows far too much.

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
        self._good = after
        self._error = error
        self._padding = padding

    @classmethod
    def of(
        cls,
        environments: EnvironmentFactory,
        *,
        at: Method = "step",
        after: int = 0,
        error: BaseException | None = None,
        padding: int = 0,
    ) -> EnvironmentFactory:
        """Return an ``EnvironmentFactory``: the environments of another one, each with this fault."""

        def make(task: Task, rollout_id: str) -> Faulty:
            inner = environments(task, rollout_id)
            return cls(inner, at=at, after=after, error=error, padding=padding)

        return make

    @property
    def action_rules(self) -> str:
        """The other one's."""
        return self._inner.action_rules

    def reset(self, task: Task) -> str:
        """Like the other one, as all methods."""
        self._meet("reset")
        return self._padded(self._inner.reset(task))

    def step(self, action: str) -> tuple[str, bool]:
        """See above."""
        self._meet("step")
        observation, done = self._inner.step(action)
        return self._padded(observation), done

    def reopen(self) -> str | None:
        """None if the other one cannot."""
        self._meet("reopen")
        reopen = getattr(self._inner, "reopen", None)
        observation = reopen() if reopen is not None else None
        return None if observation is None else self._padded(observation)

    def valid_actions(self) -> Sequence[str] | None:
        """See above."""
        self._meet("valid_actions")
        return self._inner.valid_actions()

    def answer(self) -> str | None:
        """See above."""
        self._meet("answer")
        return self._inner.answer()

    def outcome(self) -> Outcome | None:
        """See above."""
        self._meet("outcome")
        return self._inner.outcome()

    def close(self) -> None:
        """See above."""
        self._meet("close")
        self._inner.close()

    def _meet(self, method: Method) -> None:
        if method != self._at:
            return
        self._good -= 1
        if self._good >= 0:
            return
        if self._error is not None:
            raise self._error

    def _padded(self, observation: str) -> str:
        return observation + "x" * self._padding
