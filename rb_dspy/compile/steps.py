"""Single steps of a program: labeled examples from a run, and the step as a module of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, get_args

import dspy

from rb_dspy.compile.feedback import decisive_step
from rb_dspy.config import CompileStep as CompileStep
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InputError, UnparseableOutput
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps import Memory
from rb_dspy.stream import RunReport, TaskResult

STEPS: tuple[CompileStep, ...] = get_args(CompileStep)


class JudgeStep(dspy.Module):
    """Judge one rollout: ``task, trajectory`` -> ``verdict``. An answer that cannot be parsed is ``unknown``."""

    def __init__(self, program: BankProgram) -> None:
        super().__init__()
        self.judge = program.judge

    def forward(self, task: Task, trajectory: Trajectory) -> dspy.Prediction:
        try:
            return dspy.Prediction(verdict=self.judge(task, trajectory))
        except UnparseableOutput as exc:
            return dspy.Prediction(verdict=Verdict(label="unknown", reasons=str(exc)))


class SelectStep(dspy.Module):
    """Choose one of several rollouts: ``task, trajectories, verdicts`` -> ``selection``."""

    def __init__(self, program: MaTTS) -> None:
        super().__init__()
        self.select = program.select

    def forward(self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict]) -> dspy.Prediction:
        return dspy.Prediction(selection=self.select(task, trajectories, verdicts))


class AgentStep(dspy.Module):
    """Do one task with the lessons that are passed: ``task, memory`` -> ``trajectory, outcome``."""

    def __init__(self, program: BankProgram) -> None:
        super().__init__()
        self.environments = program.environments
        self.act = program.act

    def forward(self, task: Task, memory: Memory) -> dspy.Prediction:
        """Return ``trajectory`` and ``outcome``, the ground truth; raises ``InfrastructureError`` if scoring broke."""
        scored = ScoredEnvironments(self.environments)
        trajectory = self.act(task, memory, scored)
        return dspy.Prediction(trajectory=trajectory, outcome=scored.truth(task.id, trajectory.rollout_id))


def step_module(program: BankProgram, step: CompileStep) -> dspy.Module:
    """The module whose prompts are compiled: it contains the program's own step, under the same name.

    Raises:
        InputError: The program does not have this step, or the step has no prompt.
    """
    if step == "all":
        return program
    if step == "select":
        if not isinstance(program, MaTTS):
            raise InputError("step 'select': a ReasoningBank does not select; pass MaTTS(program, k=...)")
        return SelectStep(program)
    if step == "judge" and not isinstance(program.judge, dspy.Module):
        raise InputError("step 'judge': this program's judge is not a language model and has no prompt")
    if step == "judge" and program.review is not None:
        raise InputError("step 'judge': this program judges and distills in one call; compile step 'all'")
    if step == "agent" and not (isinstance(program.act, dspy.Module) and program.act.named_predictors()):
        raise InputError("step 'agent': this program's agent is code of your own and has no prompt")
    return JudgeStep(program) if step == "judge" else AgentStep(program)


def step_examples(step: CompileStep, report: RunReport) -> list[Any]:
    """The labeled examples of a run, one ``dspy.Example`` each, without duplicate rollouts.

    ======  ==================================  ============================================
    step    one for each                        label
    ======  ==================================  ============================================
    judge   rollout with ground truth           ``success``, ``reward``, ``decisive``
    select  task whose rollouts differ          ``rewards``
    agent   task with ground truth              none: the environment scores the new rollout
    ======  ==================================  ============================================

    ``decisive`` is the number of the step that decided the rollout, if another rollout shows it, else of the last step.
    """
    examples: dict[object, Any] = {}
    for result in report.results:
        if result.prediction is None or not any(result.outcomes):
            continue
        for actions, example in {"judge": _judge, "select": _select, "agent": _agent}[step](result):
            examples.setdefault((result.task.id, actions), example)
    return list(examples.values())


def stratified(examples: Sequence[Any], most: int, seed: str) -> list[Any]:
    """At most ``most`` examples, as many of each label (``success``) as of the rarest; drawn by ``seed``.

    A judge that always says the same then scores one half in the plain means that optimizers take. If a label has
    fewer than two examples, the labels are not balanced.
    """
    groups: dict[Any, list[Any]] = {}
    for example in examples:
        groups.setdefault(example.get("success"), []).append(example)
    draw = random.Random(seed)
    shuffled = [draw.sample(group, len(group)) for group in groups.values()]
    fewest = min(map(len, shuffled))
    if fewest >= 2:
        shuffled = [group[:fewest] for group in shuffled]
    return [example for example in chain.from_iterable(zip_longest(*shuffled)) if example is not None][:most]


def balanced(examples: Sequence[Any], scores: Sequence[float]) -> dict[str, list[float]]:
    """Task -> score, such that their mean over the tasks is the balanced accuracy of the verdicts.

    That is the mean of the shares of successes and of failures that were judged right. Without labels, or with one
    label only, it is the plain mean over the examples.
    """
    labels = [example.get("success") for example in examples]
    tasks = {example.task.id: 0.0 for example in examples}
    for example, label, score in zip(examples, labels, scores, strict=True):
        weight = len(tasks) / (len(set(labels)) * labels.count(label))
        tasks[example.task.id] += weight * score
    return {task: [score] for task, score in tasks.items()}


def _judge(result: TaskResult) -> list[tuple[object, Any]]:
    pairs = zip(result.rollouts, result.outcomes, strict=False)
    known = [(rollout, outcome) for rollout, outcome in pairs if outcome is not None]
    ended = [(rollout, outcome.success) for rollout, outcome in known]
    task = result.task.without_ground_truth()
    examples: list[tuple[object, Any]] = []
    for rollout, outcome in known:
        decisive = decisive_step(rollout, outcome.success, ended)
        labels = {"success": outcome.success, "reward": outcome.reward, "decisive": decisive}
        example = dspy.Example(task=task, trajectory=rollout, **labels).with_inputs("task", "trajectory")
        examples.append((_actions(rollout), example))
    return examples


def _select(result: TaskResult) -> list[tuple[object, Any]]:
    prediction: Any = result.prediction
    rewards = [outcome.reward for outcome in result.outcomes if outcome is not None]
    if len(rewards) < max(2, len(result.rollouts)) or len(set(rewards)) == 1:
        return []
    unknown = Verdict(label="unknown", reasons="not judged")
    verdicts = tuple(verdict or unknown for verdict in prediction.verdicts)
    example = dspy.Example(
        task=result.task.without_ground_truth(), trajectories=result.rollouts, verdicts=verdicts, rewards=rewards
    )
    return [(tuple(map(_actions, result.rollouts)), example.with_inputs("task", "trajectories", "verdicts"))]


def _agent(result: TaskResult) -> list[tuple[object, Any]]:
    prediction: Any = result.prediction
    return [((), dspy.Example(task=result.task, memory=prediction.memory).with_inputs("task", "memory"))]


def _actions(rollout: Trajectory) -> tuple[str, ...]:
    return tuple(step.action for step in rollout.steps)
