"""Evaluations that many machines do: queued in a PostgreSQL database, from which workers take streams.

A stream (an arm in one order) is sequential; streams are independent. That each task is done once lies in the journal:
one process at a time has a stream, and the server gives it to another when that process is gone. So a worker may be
killed, and started anywhere, at any time: a SLURM array, a Kubernetes job, Ray, or three shells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any, Literal

import pydantic

from rb_dspy.assembly import build_program
from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import BackboneConfig, Settings
from rb_dspy.errors import BudgetSpent, InputError, RBError
from rb_dspy.evaluation.arms import Arm
from rb_dspy.evaluation.plan import versions
from rb_dspy.evaluation.progress import Progress
from rb_dspy.evaluation.report import Report
from rb_dspy.evaluation.run import evaluate
from rb_dspy.jsonl import digest
from rb_dspy.matts import BankProgram
from rb_dspy.plugins import memory_name
from rb_dspy.prompts import set_state
from rb_dspy.redaction import without_secrets
from rb_dspy.schema import MemoryDraft, Task
from rb_dspy.stream import TaskStream
from rb_dspy.stream.journal import Journal, Record

_QUEUE = "queue."
_REPORT = "report"


class Job(pydantic.BaseModel, frozen=True):
    """All that a worker needs for an evaluation. Code has names, and is imported where it runs; keys are not stored."""

    name: str
    tasks: tuple[Task, ...]
    arms: tuple[str, ...]
    """Memory systems."""
    models: tuple[str, ...] = ()
    """Instead of ``arms``: models as agents of the program."""
    orders: int
    baseline: str | None = None
    signal: Literal["judge", "outcome"] = "judge"
    unequal_signals: bool = False
    settings: dict[str, pydantic.JsonValue]
    """``Settings`` as JSON, without defaults."""
    env: str | None = None
    agent: str | None = None
    score: str | None = None
    """``module:name``."""
    prompts: dict[str, pydantic.JsonValue] | None = None
    """The state of the program."""
    start: tuple[str, str] | None = None
    """URL and scope of the bank that the arms start from."""
    lessons: tuple[MemoryDraft, ...] | None = None
    """For the arm oracle."""
    versions: dict[str, str] = pydantic.Field(default_factory=versions)

    def run(self, url: str, jobs: int = 1, on_progress: Callable[[Progress], object] | None = None) -> Report:
        """Do the streams that nobody else does, until all are done; see ``evaluate``.

        Raises:
            InputError: This machine has another version than the one that queued the job, or lacks its code.
        """
        if self.versions != versions():
            raise InputError(f"the evaluation was queued with {self.versions}, and this machine has {versions()}")
        chosen = Settings.model_validate(self.settings)
        backbones = Backbones.from_settings(chosen.roles)
        program = build_program(chosen.program, chosen.matts, self.env, backbones, self.agent, self.score)
        if self.prompts is not None:
            set_state(program, self.prompts, source=self.name)
        embedder = chosen.bank.embedder
        bank = nullcontext() if self.start is None else MemoryBank.open(
            self.start[0], scope=self.start[1], embedder=embedder, create=False, trust=chosen.trust
        )  # fmt: skip
        with bank as start:
            return evaluate(
                sides(program, self.arms, self.models, start, chosen.roles, self.signal),
                TaskStream(self.name, self.tasks),
                orders=self.orders,
                seed=chosen.run.seed,
                baseline=self.baseline,
                unequal_signals=self.unequal_signals,
                lessons=self.lessons,
                embedder=embedder,
                folder=url,
                jobs=jobs,
                on_progress=on_progress,
            )


def agents(models: Sequence[str], roles: Mapping[str, BackboneConfig]) -> dict[str, dict[str, BackboneConfig]]:
    """Model -> the language models by role, with this one as the agent; without ``models``: those of ``roles``."""
    if not models:
        return {"": dict(roles)}
    agent, found = roles["agent"], {}
    for name in models:  # a model of the same provider keeps the agent's address and settings
        same = name.partition("/")[0] == agent.model.partition("/")[0]
        found[name] = {
            **roles,
            "agent": agent.model_copy(update={"model": name}) if same else BackboneConfig(model=name),
        }
    return found


def sides(
    program: BankProgram,
    arms: Sequence[str],
    models: Sequence[str],
    bank: MemoryBank | None,
    roles: Mapping[str, BackboneConfig],
    signal: Literal["judge", "outcome"] = "judge",
) -> dict[str, Arm]:
    """The arms by name: memory systems, or models as agents of the program; those with memory start from ``bank``."""
    memories: Any = () if models else arms
    named = [Arm(program, memory_name(name), signal=signal) for name in memories]
    found = {arm.memory: replace(arm, bank=bank if arm.learns else None) for arm in named}
    for name, each in agents(models, roles).items() if models else ():
        found[name] = Arm(program, "bank", Backbones.from_settings(each), bank, signal)
    return found


def enqueue(url: str, job: Job) -> str:
    """Queue an evaluation; the same job is queued once. Returns its id.

    Raises ``InputError`` if the address of its bank has a password, which would be stored.
    """
    if job.start is not None and without_secrets(job.start[0]) != job.start[0]:
        raise InputError("the address of the bank has a password, which is not stored; leave it out (see PGPASSFILE)")
    with closing(Journal.at(url)) as journal:
        stated = job.model_dump(mode="json", exclude_defaults=True) | {"versions": job.versions}
        return journal.start([_REPORT], f"{_QUEUE}{digest(stated)[:12]}", job=stated).id.removeprefix(_QUEUE)


def queued(url: str) -> list[tuple[str, Job, Report | None]]:
    """The evaluations of a database, oldest first: id, job, and the report of a finished one."""
    with closing(Journal.at(url)) as journal:
        runs = [run for run in journal.runs(_QUEUE) if "job" in run.head]
        return [(run.id.removeprefix(_QUEUE), _job(run), _report(run)) for run in runs]


def work(url: str, *, jobs: int = 1, on_progress: Callable[[Progress], object] | None = None) -> dict[str, Report]:
    """Do all queued evaluations of a database that are not finished, together with other workers.

    Args:
        url: The database, ``postgresql://...``. Whoever can write to it chooses which code of this machine runs.
        jobs: Streams that run in parallel here, in threads.
        on_progress: Called after every task that this worker did.

    Returns:
        Id of a job -> its report.

    Raises:
        RBError: After the others are done, the error of the first job that failed.
    """
    reports: dict[str, Report] = {}
    failed: list[RBError] = []
    for id, job, report in queued(url):
        if report is None:
            try:
                report = job.run(url, jobs, on_progress)
            except BudgetSpent:
                raise
            except RBError as exc:  # the other jobs can be done
                failed.append(type(exc)(f"job {id}: {exc}"))
                continue
            with closing(Journal.at(url)) as journal:
                row = {"task": _REPORT, "error": "", "report": report.model_dump(mode="json")}
                journal.store(f"{_QUEUE}{id}", row)
            reports[id] = report
    if failed:
        raise failed[0]
    return reports


def _job(run: Record) -> Job:
    try:
        return Job.model_validate(run.head["job"])
    except (KeyError, pydantic.ValidationError):
        raise InputError(f"job {run.id}: was queued by another version of rb_dspy; queue it again") from None


def _report(run: Record) -> Report | None:
    return Report.model_validate(run.rows[_REPORT]["report"]) if run.finished else None
