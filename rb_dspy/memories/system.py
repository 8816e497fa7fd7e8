"""A memory system: steps that take the places of a program's own, and what it may learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig, RetrieveConfig
from rb_dspy.errors import ConfigError
from rb_dspy.schema import Mark, MemoryDraft, MemoryItem, Task, Trajectory, Uses, Verdict
from rb_dspy.steps import Distilled, Memory

Signal = Literal["judge", "outcome", "none"]
"""What a system learns from: an LLM judge's verdicts, the true outcome, or no feedback at all."""


@dataclass(frozen=True)
class Attempt:
    """A finished rollout, as a distiller sees it: the task has no ground truth."""

    task: Task
    trajectory: Trajectory
    verdict: Verdict
    shown: tuple[MemoryItem, ...] = ()
    """What its agent was shown, in order."""
    number: int = 0
    """Distinguishes samples of one prompt."""


@dataclass(frozen=True)
class Curated:
    """What a curator does with the drafts of a task, and with the items of the bank. All of it is one write."""

    drafts: tuple[MemoryDraft, ...] = ()
    """What is stored."""
    retired: Mapping[str, str] = field(default_factory=dict)
    """Id of an item -> why it is retired. It stays in the history and can be undeleted."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Id of an item -> whether it helped in this task."""
    attempts: tuple[Attempt, ...] = ()
    """The rollouts of the task, with their verdicts and what their agents were shown."""
    note: str = ""
    """What the experience says of it, such as what was refused."""


class Retrieval(Protocol):
    """What an agent is shown. Reads the bank only."""

    def __call__(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        """``own_lessons``: also what was learned from the same task."""
        ...


class Distiller(Protocol):
    """What is learned from one rollout, or from several of one task (contrast). Reads the bank only.

    Raises:
        UnparseableOutput: The answer of a language model could not be parsed.
        InfrastructureError: A call failed.
    """

    def __call__(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled: ...


class Curator(Protocol):
    """Keeps a bank in order: it gets what is about to be stored, and says what is stored and what is retired.

    Reads the bank only. A language model call that fails raises; it never means "nothing to do".
    """

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated: ...


class Credit(Protocol):
    """What an item is worth: a pure function of its uses, oldest first, so that forks and rollbacks agree."""

    def __call__(self, uses: Uses) -> float: ...


@dataclass(frozen=True)
class MemorySystem:
    """The parts of a memory system. A part that is None is the program's own step.

    A step that calls a language model is a ``dspy.Module``, so that its prompts can be compiled and saved.
    """

    stores: str
    """What is stored, in a few words: for ``rb-dspy memories``, as the next two."""
    shows: str
    """What is shown, and how it is found."""
    source: str
    """The paper or the repository."""
    calls: str = "1"
    """Calls of a language model a task, without the agent's and the judge's."""
    name: str = ""
    """Its entry point; ``system_of`` fills it in."""
    retrieve: Retrieval | None = None
    teach: Distiller | None = None
    curate: Sequence[Curator] = ()
    """In this order; none: what is learned is only appended."""
    signal: Signal = "judge"
    """The authors' feedback. ``none``: no judge is called; else a run decides whether a judge or the truth is used."""
    truth: bool = False
    """A control that always learns from the true outcome."""
    learns: bool = True
    """Whether anything is stored."""
    needs_lessons: bool = False
    """A control that reads the right lessons, which somebody wrote, instead of what was learned."""
    repeats_tasks: bool = False
    """Whether an agent may be shown what was learned from its own task."""


@dataclass(frozen=True)
class Base:
    """What a memory system takes from the program for which it is made."""

    retrieve: Any
    """Its own step."""
    distill: DistillConfig = field(default_factory=DistillConfig)
    """Settings of calls that learn."""
    seed: int = 0
    """For systems that draw at random."""

    @property
    def config(self) -> RetrieveConfig:
        """The settings of retrieval. ``max_tokens`` is the cap, which is equal for all systems."""
        config = getattr(self.retrieve, "config", None)
        return config if isinstance(config, RetrieveConfig) else RetrieveConfig()


class MemoryFactory(Protocol):
    """Makes a memory system: the entry point in the group ``rb_dspy.memories``."""

    def __call__(self, base: Base) -> MemorySystem: ...


def system_of(memory: str | MemorySystem | MemoryFactory, base: Base) -> MemorySystem:
    """The memory system of a name or a factory, for a program; ``bank+supersede`` is ``bank`` with a further curator.

    Raises:
        ConfigError: ``memory`` is neither a name nor a system.
        InputError: No installed system, or curator, has this name.
    """
    if isinstance(memory, str):
        name, *more = memory.split("+")
        system, curators = plugins.memory(name, base), [*map(plugins.curator, more)]
        early = [each for each in curators if getattr(each, "first", False)]
        curate = [*early, *system.curate, *(each for each in curators if each not in early)]
        memory = replace(system, name=plugins.memory_name(memory), curate=curate)
    elif callable(memory):
        memory = memory(base)
    if not isinstance(memory, MemorySystem):
        raise ConfigError(
            f"got {type(memory).__name__} for memory; expected a name, a MemorySystem, or a function that makes one"
        )
    return memory


def unjudged(task: Task, trajectory: Trajectory) -> Verdict:  # noqa: ARG001
    """The judge of a system that learns without feedback."""
    return Verdict(label="unknown", reasons="not judged: this memory learns without feedback")
