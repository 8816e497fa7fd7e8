"""What scenarios ask of a program in the world of locks, and of its bank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task
from rb_dspy.testing import HashEmbedder, Prompt, Reply, lock, locksmith, scripted_lm, toys
from rb_dspy.testing.locks import GUESS, MAKERS


def easy(number: int = 1, code: str = GUESS, **env_args: Any) -> Task:
    """A lock that opens at the first guess."""
    return lock(MAKERS[0], number, code, **env_args)


def series(count: int, **env_args: Any) -> list[Task]:
    return [easy(number, **env_args) for number in range(count)]


class Spy:
    """A locksmith that records every prompt it answers. ``roles`` replaces the answers of single roles."""

    def __init__(self, roles: Mapping[str, Callable[[Prompt], Reply]] | None = None) -> None:
        self.roles = dict(roles or {})
        self.prompts: list[Prompt] = []

    def __call__(self, prompt: Prompt) -> Reply:
        self.prompts.append(prompt)
        return self.roles.get(prompt.role, locksmith)(prompt)

    def of(self, role: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.role == role]

    def roles_asked(self) -> list[str]:
        return [prompt.role for prompt in self.prompts]


def program(script: Any = locksmith, environments: Any = toys, **kwargs: Any) -> ReasoningBank:
    return ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=environments, **kwargs)


@contextmanager
def bank_at(path: Path | None) -> Iterator[MemoryBank]:
    with MemoryBank.open(path, scope="scenarios", embedder=HashEmbedder()) as bank:
        yield bank


def contents(bank: MemoryBank) -> list[Any]:
    """What the bank learned, without ids and times: equal for runs that did the same."""
    return [
        (
            each.task.id,
            [verdict.label for verdict in each.verdicts],
            [[(step.action, step.observation) for step in rollout.steps] for rollout in each.trajectories],
            sorted((item.title, item.content) for item in each.items),
        )
        for each in bank.experiences()
    ]


def lessons(bank: MemoryBank) -> set[str]:
    return {item.content for item in bank.items()}


def learned_tasks(bank: MemoryBank, run_id: str | None = None) -> list[str]:
    """Ids of the tasks of all experiences, with repetition."""
    return [each.task.id for each in bank.experiences() if run_id in (None, each.run_id)]


def resume_all(run: Any, bank: MemoryBank) -> None:
    for pending in bank.pending():
        run.resume(pending)
