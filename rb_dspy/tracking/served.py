"""A registered program as MLflow loads and serves it: tasks in, answers out.

MLflow copies this file into the model ("models from code"); its imports must be installed where it is served.
"""

from __future__ import annotations

import threading
from typing import Any

import mlflow
import pydantic
from mlflow.pyfunc.model import PythonModel

from rb_dspy.assembly import build_program
from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, ProgramConfig
from rb_dspy.errors import InputError
from rb_dspy.matts import BankProgram
from rb_dspy.pace import silent
from rb_dspy.prompts import load_program
from rb_dspy.schema import Task
from rb_dspy.stream import run_stream
from rb_dspy.text import summary_line
from rb_dspy.tracking.settings import BackbonesLike, serving_backbones

_NO_ID = "served"
"""Id of a task that has none."""


class TaskIn(pydantic.BaseModel):
    """A task; only ``instruction`` is required. Its environment is the one that the program was registered with."""

    instruction: str
    id: str | None = None
    domain: str | None = None
    template: str | None = None


class AnswerOut(pydantic.BaseModel):
    """The answer to a task; ``lessons`` are the titles of those shown; ``error`` says why there is no answer."""

    id: str
    answer: str = ""
    steps: int = 0
    stop_reason: str = ""
    lessons: list[str] = []
    error: str = ""


class ServedProgram(PythonModel):
    """Does tasks with the prompts and lessons that it was registered with; it learns nothing.

    Backbones and lessons are loaded with the first task, so that the model can be inspected without a language model.
    """

    def load_context(self, context: Any) -> None:
        """Build the program. Raises ``SignatureChanged`` if its prompts were compiled for other signatures."""
        self._settings = context.model_config
        matts = self._settings["matts"]
        self._program = build_program(
            ProgramConfig(**self._settings["program"]),
            None if matts is None else MattsConfig(**matts),
            self._settings["environments"],
        )
        load_program(self._program, context.artifacts["state"])
        self._lessons = context.artifacts.get("bank")
        self._bank: MemoryBank | None = None
        self._backbones: Backbones | None = None
        self._lock = threading.Lock()

    def use(self, backbones: BackbonesLike) -> None:
        """Use these language models from now on."""
        self._backbones = Backbones.of(backbones)

    @property
    def program(self) -> BankProgram:
        """The program with its backbones, for use with the caller's own bank."""
        with self._lock:
            if self._backbones is None:
                self._backbones = serving_backbones(self._settings["backbones"])
            self._program.backbones = self._backbones
        return self._program

    def predict(self, model_input: list[TaskIn]) -> list[AnswerOut]:  # type: ignore[override]
        """An answer to each task, in order. A task that breaks has an error; an unusable language model raises."""
        program, bank = self.program, self._open_bank()
        return [_answer(program, bank, task) for task in model_input]

    def _open_bank(self) -> MemoryBank:
        with self._lock:
            if self._bank is None:
                settings = self._settings
                self._bank = MemoryBank.open(None, scope=settings["scope"], embedder=settings["embedder"])
                if self._lessons is not None:
                    self._bank.import_jsonl(self._lessons, own=True)
            return self._bank


def _answer(program: BankProgram, bank: MemoryBank, given: TaskIn) -> AnswerOut:
    try:
        task = _task(given)
    except InputError as exc:
        return AnswerOut(id=given.id or _NO_ID, error=str(exc))
    [result] = run_stream(program, [task], bank, learn=False, on_progress=silent, stop_after=None).results
    done = result.prediction
    if done is None:
        return AnswerOut(id=task.id, error=result.error)
    return AnswerOut(
        id=task.id,
        answer=done.answer or "",
        steps=len(done.trajectory.steps),
        stop_reason=done.trajectory.stop_reason,
        lessons=[item.title for item in done.memory.items],
    )


def _task(given: TaskIn) -> Task:
    """The task of a request, which may be hostile: ``env`` and ``env_args`` of it could open any file here."""
    fields = {name: getattr(given, name) for name in TaskIn.model_fields}  # MLflow passes a Task unchanged
    try:
        return Task(**{"id": _NO_ID, **{name: value for name, value in fields.items() if value is not None}})
    except ValueError as exc:
        raise InputError(f"not a task: {summary_line(exc, 200)}; expected the fields of Task") from None


mlflow.models.set_model(ServedProgram())
