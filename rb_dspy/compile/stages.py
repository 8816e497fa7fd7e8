"""One step of a program as a module of its own, so that its prompts can be compiled without running whole streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InputError, UnparseableOutput
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.program import session
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.stream import StreamProgram

Stage = Literal["judge", "select", "agent", "all"]
STAGES: tuple[Stage, ...] = get_args(Stage)


def stage_module(
    program: BankProgram, stage: Stage, *, bank: MemoryBank | None = None, embedder: Embedder | str | None = None
) -> dspy.Module:
    """The module whose prompts are compiled in ``stage``. It holds the program's own step, not a copy.

    ========  ===========================================  =======================================
    stage     called with                                  the prediction has
    ========  ===========================================  =======================================
    judge     ``task, trajectory``                         ``verdict``
    select    ``task, trajectories, verdicts``             ``selection``
    agent     ``task, memory``                             ``trajectory``, ``outcome``, ``answer``
    all       ``stream`` (``StreamProgram``)               ``report``, ``score``
    ========  ===========================================  =======================================

    Its predictors have the names that they have in the program; in ``all`` with ``program.`` before them. ``bank`` and
    ``embedder`` are those of ``StreamProgram``. What breaks is raised, but in ``all``. Raises ``InputError`` for an
    unknown stage and for a step that the program does not have.
    """
    if stage not in STAGES:
        raise InputError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
    if stage == "select" and not isinstance(program, MaTTS):
        raise InputError(
            f"stage {stage!r}: a {type(program).__name__} has no such step; give a MaTTS (--matts parallel)"
        )
    if stage == "judge" and not isinstance(program.judge, dspy.Module):
        raise InputError("stage 'judge': this program's judge is not a language model's; it has no prompt")
    if stage == "all":
        return StreamProgram(program, bank, embedder=embedder)
    made: dspy.Module = _MODULES[stage](program)
    return made


class JudgeStage(dspy.Module):
    """One verdict."""

    def __init__(self, program: BankProgram) -> None:
        super().__init__()
        self.backbones = program.backbones
        self.judge = program.judge

    def forward(self, task: Task, trajectory: Trajectory) -> dspy.Prediction:
        """Judge ``trajectory``. An answer that cannot be parsed is the verdict ``unknown``."""
        with _called(self.backbones):
            try:
                verdict = self.judge(task.without_ground_truth(), trajectory)
            except UnparseableOutput as exc:
                verdict = Verdict(label="unknown", reasons=str(exc))
        return dspy.Prediction(verdict=verdict)


class SelectStage(dspy.Module):
    """One choice among rollouts."""

    def __init__(self, program: MaTTS) -> None:
        super().__init__()
        self.backbones = program.backbones
        self.select = program.select

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> dspy.Prediction:
        """Choose one of ``trajectories``; ``verdicts`` are read only with ``SelectConfig.verdicts``."""
        with _called(self.backbones):
            return dspy.Prediction(selection=self.select(task.without_ground_truth(), trajectories, verdicts))


class AgentStage(dspy.Module):
    """One rollout of a task with lessons that are given."""

    def __init__(self, program: BankProgram) -> None:
        super().__init__()
        self.backbones = program.backbones
        self.environments = program.environments
        self.act = program.act

    def forward(self, task: Task, memory: Memory) -> dspy.Prediction:
        """Do ``task`` with ``memory``; ``outcome`` is ground truth, None where nobody knows it.

        Raises ``InfrastructureError`` where scoring broke.
        """
        scored = ScoredEnvironments(self.environments)
        with _called(self.backbones):
            trajectory: Trajectory = self.act(task, memory, scored)
        outcome = scored.truth(task.id, trajectory.rollout_id)
        return dspy.Prediction(trajectory=trajectory, outcome=outcome, answer=trajectory.answer)


_MODULES = {
    "judge": JudgeStage,
    "select": SelectStage,
    "agent": AgentStage,
}


@contextmanager
def _called(backbones: Backbones | None) -> Iterator[None]:
    with session(backbones), dspy.context(disable_history=True):  # thousands of calls a compile, 17 KB each
        yield
