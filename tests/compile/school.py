"""What the tests of compiling share: the scripted world of ``tests.compile.teacher`` as programs and streams."""

from __future__ import annotations

from typing import Any

from rb_dspy.backbones import Backbones
from rb_dspy.compile.compile import compile_program
from rb_dspy.compile.result import Compiled
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Outcome, Task
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.testing import Lock, scripted_lm
from rb_dspy.testing.embedder import HashEmbedder
from tests.compile.teacher import locks, pupil, teacher


def environments(task: Task, rollout: str) -> Lock:
    return Lock.make(task, rollout)


class Hushed(Lock):
    """A lock of which nobody knows how it ended; of those that tell of wins (``hushed``) only where it stays shut."""

    tells_wins = False

    def outcome(self) -> Outcome | None:  # type: ignore[override]
        found = super().outcome()
        return found if self.tells_wins and found.success else None

    @classmethod
    def of(cls, task: Task, rollout: str) -> Lock:
        """An ``EnvironmentFactory``: plain locks, but for tasks that are ``hushed``."""
        tells = task.env_args.get("tells")
        made = (Lock if tells is None else cls).make(task, rollout)
        if isinstance(made, cls):
            made.tells_wins = tells == "wins"
        return made


def hushed(task: Task, tells: str = "nothing") -> Task:
    """``task`` in an environment that ``tells`` of "wins" only, or nothing."""
    return task.model_copy(update={"env_args": {**task.env_args, "tells": tells}})


def program(lm: Any = None, *, k: int = 2) -> MaTTS:
    return MaTTS(ReasoningBank(backbones=Backbones(agent=lm or scripted_lm(pupil)), environments=environments), k=k)


def streams(each: int = 4) -> Streams:
    return Streams(
        TaskStream("to-compile", tuple(locks(3, each))),
        TaskStream("to-choose", tuple(locks(2, each, first=3))),
        TaskStream("held-out", tuple(locks(3, each, first=5))),
    )


def compiled(**kwargs: Any) -> Compiled:
    given: dict[str, Any] = {
        "embedder": HashEmbedder(),
        "reflection": scripted_lm(teacher),
        "budget": 60,
        "orders": 3,
        **kwargs,
    }
    return compile_program(given.pop("program", None) or program(), given.pop("streams", None) or streams(), **given)
