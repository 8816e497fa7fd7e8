"""ReasoningBank: retrieve, act, judge, distill, append (Ouyang et al., ICLR 2026, arXiv 2509.25140, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal

import dspy

from rb_dspy.agents import Agent, ExternalAct, ScoreFunction, scored_by
from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import identity
from rb_dspy.concurrency import run_in_thread
from rb_dspy.config import ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.importers import Foreign, to_trajectory
from rb_dspy.importers.trajectory import validate
from rb_dspy.learner import Learner, Lessons, as_task, check_bank, first_shown, noted, session
from rb_dspy.memories import Base, MemoryFactory, MemorySystem, system_of
from rb_dspy.protocols import EnvironmentFactory, Judge as JudgeProtocol, Redactor, Reranker
from rb_dspy.redaction import redact
from rb_dspy.schema import Experience, MemoryItem, Shown, Task, Trajectory
from rb_dspy.steps import Act, Distill, Judge, Memory, Retrieve, Review
from rb_dspy.steps.memory import render


class ReasoningBank(Learner):
    """An agent that learns from its own successes and failures: ``program(task=task, bank=bank)``.

    The bank is an argument and language models are bound when a call is made, so the program can be copied, compiled
    and saved like any other dspy program; its state contains prompts only.

    Args:
        config: Settings of the steps; ``ProgramConfig.paper()`` has the paper's values.
        backbones: ``Backbones``, or a dict role -> language model. Without them dspy's configured LM plays every role.
        environments: Makes the environment of a rollout from the task.
        memory: A memory system: a name, of those that ``rb-dspy memories`` lists, or a ``MemoryFactory``. Default:
            lessons, as described here.
        agent: An agent that you have, in the place of ours: ``agent(task, lessons)``, or a DSPy module such as
            ``dspy.ReAct``; see ``Agent``. It works without an environment, which only gets its answer.
        score: Ground truth in the place of an environment: ``score(task, answer)`` returns True, False, or a number
            from 0 to 1; may be async.
        judge: Replaces the LLM judge: ``(task, trajectory) -> Verdict``; may be async.
        reranker: Chooses among ``RetrieveConfig.candidates`` matches.
        redactor: Takes secrets out of a text before a judge, a distiller or the bank gets it; the agent, and the answer
            that is returned, keep them. Default: keys and passwords, see ``rb_dspy.redaction``.
    """

    def __init__(
        self,
        config: ProgramConfig | None = None,
        *,
        backbones: Backbones | Mapping[str, Any] | None = None,
        environments: EnvironmentFactory = make_environment,
        memory: str | MemorySystem | MemoryFactory | None = None,
        agent: Agent | dspy.Module | None = None,
        score: ScoreFunction | None = None,
        judge: JudgeProtocol | None = None,
        reranker: Reranker | None = None,
        redactor: Redactor = redact,
    ) -> None:
        super().__init__()
        if not isinstance(config, ProgramConfig | None):
            raise ConfigError(f"got {type(config).__name__} for config; expected a ProgramConfig (models: backbones=)")
        if score is not None and environments is not make_environment:
            raise ConfigError("score and environments both say what is right; pass one of them")
        config = config or ProgramConfig()
        self.backbones = Backbones.of(backbones)
        self.environments = environments if score is None else scored_by(score)
        self.redactor = redactor
        self.retrieve = Retrieve(config.retrieve, reranker)
        self.act: Any = Act(config.act) if agent is None else ExternalAct(agent, rules=score is None)
        self.judge: Any = Judge(config.judge) if judge is None else judge
        self.distill = Distill(config.distill)
        self.review = Review(config.judge, config.distill) if config.learn == "one_call" else None
        self.skip_known = config.skip_known
        self.systems, self.own_retrieve = (), self.retrieve
        self.teach, self.curate, self.repeats_tasks = None, (), False
        if memory is not None:
            self.use_memory(system_of(memory, Base(self.retrieve, config.distill)))

    def learn(
        self,
        task: Task | str,
        trajectory: Foreign,
        bank: MemoryBank,
        *,
        memory: Memory | None = None,
        run_id: str = "",
        outcome: float | None = None,
        verdict: Literal["success", "failure"] | None = None,
        feedback: str = "",
        origin: str = "caller",
        later: bool = False,
    ) -> Experience:
        """Judge and distill a rollout of an external agent, and append the lessons.

        Args:
            task: The task that the agent worked on.
            trajectory: Chat messages in any common format, step dicts, the result of a dspy agent, or a ``Trajectory``.
            bank: Appended to; the experience is stored when this returns.
            memory: The return value of ``recall``, so that the bank records which lessons were shown.
            run_id: A run learns from each task once. Without a ``run_id``, the same rollout is learned from once. Then
                the stored experience is returned.
            outcome: The known outcome, from 0.0 to 1.0; success from 0.5 on. The judge is not called then.
            verdict: The known outcome as a label; pass either ``outcome`` or ``verdict``.
            feedback: A correction or a remark in words; the distiller's best evidence.
            origin: Where the rollout's texts come from, such as ``mail:customer-17``; ``TrustConfig`` decides how far
                its lessons are trusted.
            later: Only store the rollout with all of this, as ``record`` does, and call no model. It is pending until
                ``resume``, ``rb-dspy learn`` or a run does the rest; the experience is returned as far as it is known.

        What you learn of a rollout later counts: call this again with the same rollout. An ``outcome``, ``verdict`` or
        ``feedback`` that is new, or another one than before, is a correction: the rollout is learned from again, with
        what was stated of it before and is not stated now. The new experience replaces the first; edited lessons stay.
        The same once more changes nothing and calls no model. The last statement counts, also of a rollout that is
        pending.

        Raises:
            InvalidTrajectory: The rollout cannot be read.
            InputError: An argument is invalid, what was learned from this rollout was removed from the bank, or the
                run learned from another rollout than the one that is corrected.
            UnparseableOutput: As for a call. After ``MAX_TRIES`` it is stored without lessons, but no correction is.
        """
        check_bank(bank)
        if not isinstance(memory, Memory | None):
            raise InputError(
                f"memory must be the object returned by recall(), not a {type(memory).__name__}; pass `memory`, not its"
                " block"
            )
        task = self._clean(as_task(task))
        rollout = self._clean(to_trajectory(task, trajectory))
        if not isinstance(trajectory, Trajectory | dspy.Prediction):  # a file does not say what this bank has shown
            rollout = rollout.model_copy(update={"shown": Shown()})
        rollout = rollout if memory is None else noted(rollout, memory)
        label = _label(outcome, verdict)
        if label or feedback:
            stated = {
                "known_label": label or rollout.known_label,
                "feedback": (self.redactor(feedback) if isinstance(feedback, str) else feedback) or rollout.feedback,
            }
            rollout = validate({**dict(rollout), **stated})
        known = bank.known(task, rollout, run_id=run_id)
        if known is not None and identity(task, [rollout], run_id="") != identity(task, known.trajectories, run_id=""):
            if label or feedback:
                raise InputError(
                    f"task {task.id}: run {run_id} learned from another rollout, which this verdict or feedback cannot"
                    " correct; pass that rollout, or another run_id"
                )
            return known
        shown: list[MemoryItem | str] = [*(memory.items if memory else ()), *rollout.shown.ids]
        reward = None if outcome is None else float(outcome)
        waits = bank.record(task, rollout, run_id=run_id, shown=shown, origin=origin, reward=reward)
        if waits is None:
            return known or self.learn(task, rollout, bank, run_id=run_id)  # another call of the run was faster
        (rollout,), reward, origin = waits.trajectories, waits.reward, waits.origin
        memory = memory or render(first_shown(waits.shown, waits.trajectories))
        if later:
            id = identity(task, [rollout], run_id=run_id)
            about: dict[str, Any] = {"run_id": run_id, "origin": origin, "reward": reward, "note": "pending"}
            return Experience(id=id, scope=bank.scope, seq=0, task=task, trajectories=(rollout,), verdicts=(), **about)
        with session(self.backbones) as ledger:
            learned = self._learn(task, (rollout,), bank, memory, ledger, run_id=run_id, origin=origin, reward=reward)
            done: Experience | None = learned.experience
            return done or self.learn(task, rollout, bank, run_id=run_id)  # another call of the run was faster

    def record(self, task: Task | str, trajectory: Foreign, bank: MemoryBank, **known: Any) -> Experience:
        """Store a rollout when it ends, in the time of a write, and call no model: ``learn(..., later=True)``.

        Args:
            task: As for ``learn``, like the other arguments.
            trajectory: The rollout.
            bank: Where it is pending until ``resume``, ``rb-dspy learn`` or a run learns from it.
            **known: Keywords of ``learn``: ``memory``, ``run_id``, ``outcome``, ``verdict``, ``feedback``, ``origin``.

        Returns:
            The experience as far as it is known; its note is "pending".
        """
        return self.learn(task, trajectory, bank, later=True, **known)

    async def alearn(self, *args: Any, **kwargs: Any) -> Experience:
        """``learn`` for asyncio."""
        return await run_in_thread(self.learn, *args, **kwargs)

    def _rollouts(
        self,
        task: Task,
        memory: Memory,
        environments: EnvironmentFactory,
        keep: Callable[[Trajectory], object],
        stored: tuple[Trajectory, ...] = (),
    ) -> tuple[tuple[Trajectory, ...], dict[str, Any]]:
        if stored:
            return stored, {}
        trajectory = self.act(task, memory, environments)
        keep(trajectory)
        return (trajectory,), {}

    def _lessons(
        self, task: Task, trajectories: tuple[Trajectory, ...], bank: MemoryBank, memory: Memory, learn: bool = True
    ) -> Lessons:
        if not learn:
            return Lessons()
        if len(trajectories) != 1:
            raise InputError(f"task {task.id}: {len(trajectories)} pending rollouts; use MaTTS.resume")
        (trajectory,) = trajectories
        verdict, drafts = self._taught(task, trajectory, bank, memory)
        return Lessons((verdict,), drafts)


def _label(outcome: Any, verdict: str | None) -> Literal["success", "failure"] | None:
    if outcome is not None and verdict is not None:
        raise InputError("learn: pass outcome or verdict, not both")
    if outcome is not None:
        if not isinstance(outcome, Real) or not 0 <= float(outcome) <= 1:  # numpy's numbers are real numbers too
            raise InputError(f"learn: outcome is {outcome!r}; expected a number from 0.0 to 1.0")
        return "success" if float(outcome) >= 0.5 else "failure"
    if verdict not in (None, "success", "failure"):
        raise InputError(f"learn: verdict is {verdict!r:.60}; expected 'success' or 'failure'")
    return verdict  # type: ignore[return-value]
