"""A registered program as MLflow calls it: tasks in, answers out. Imports MLflow."""

from __future__ import annotations

import json
import threading
from typing import Any

import dspy
import pydantic
from mlflow.pyfunc.model import PythonModel

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.state import load_program
from rb_dspy.errors import BackboneError, InputError, MissingDependency, RBError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Task
from rb_dspy.text import first_error
from rb_dspy.tracking.rebuilt import BackbonesLike, made_backbones, made_by, rebuilt

_NO_ID = "served"
"""Id of a task that comes without one."""


class TaskIn(pydantic.BaseModel):
    """A task to do: what ``Task`` has, of which ``instruction`` alone must be there."""

    instruction: str
    id: str | None = None
    env: str | None = None
    """Name of an installed environment; None is ``question``."""
    env_args: dict[str, Any] | str | None = None
    """An object, or one as JSON text. MLflow knows such a field as one of any type, and leaves looking at it to us."""
    domain: str | None = None
    template: str | None = None


class AnswerOut(pydantic.BaseModel):
    """What came of it. ``lessons``: titles of what the agent was shown; ``stop_reason``: how its rollout ended,
    ``done`` where it handed something in, empty where there is none; ``error``: why there is no answer."""

    id: str
    answer: str
    steps: int
    stop_reason: str
    lessons: list[str]
    error: str


class ServedProgram(PythonModel):
    """Does tasks with the prompts and the lessons that it was registered with, and learns nothing from them.

    Every answer starts from the same lessons: what several copies of a server learned on their own would drift apart.
    Backbones are made at the first task, so that a model can be loaded where those it was registered with are not.
    """

    def load_context(self, context: Any) -> None:
        """Build the program. Raises ``SignatureChanged`` where its prompts were compiled for other signatures."""
        settings = context.model_config
        self._program = rebuilt(settings)
        load_program(self._program, context.artifacts["state"])
        self._backbones: BackbonesLike | None = settings.get("backbones")
        self._bank = _bank(settings, context.artifacts.get("bank"))
        self._making = threading.Lock()

    def use(self, backbones: BackbonesLike) -> None:
        """From now on with other language models, which are made at once."""
        self._backbones = made_backbones(backbones)

    def program(self) -> ReasoningBank | MaTTS:
        """The program with its backbones, for a bank of the caller's; the lessons inside the model stay there."""
        self._program.backbones = self._bound()
        return self._program

    def predict(self, model_input: list[TaskIn]) -> list[AnswerOut]:  # type: ignore[override]
        """One answer for each task, in order; a ``Task``, and what its ``model_dump`` gives, will do as well.

        A task that breaks has an error; a model that cannot be used raises.
        """
        return [self._answer(given) for given in model_input]

    def _answer(self, given: TaskIn | Task) -> AnswerOut:
        backbones = self._bound()
        try:
            task = _task(given)
            with backbones.use(), dspy.context(disable_history=True):
                found = self._program(task=task, bank=self._bank, learn=False)
        except (BackboneError, MissingDependency):
            raise
        except RBError as exc:
            return AnswerOut(id=given.id or _NO_ID, answer="", steps=0, stop_reason="", lessons=[], error=str(exc))
        return AnswerOut(
            id=task.id,
            answer=found.answer or "",
            steps=len(found.trajectory.steps),
            stop_reason=found.trajectory.stop_reason,
            lessons=[item.title for item in found.memory.items],
            error="",
        )

    def _bound(self) -> Backbones:
        with self._making:
            made = made_backbones(self._backbones)
            self._backbones = made
        return made


def _task(given: TaskIn | Task) -> Task:
    """A ``Task`` as it is: MLflow hands on what has the fields, whatever its type."""
    if isinstance(given, Task):
        return given
    args = given.env_args or {}
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except json.JSONDecodeError as exc:
            raise InputError(f"env_args: not JSON: {exc.msg}; expected an object, or one as JSON text") from None
    if not isinstance(args, dict):
        raise InputError("env_args: expected a JSON object, or one as text")
    try:
        return Task(
            id=given.id or _NO_ID,
            instruction=given.instruction,
            env=given.env or "question",
            env_args=args,
            domain=given.domain or "",
            template=given.template,
        )
    except pydantic.ValidationError as exc:  # what is no JSON, in process
        raise InputError(f"env_args: {first_error(exc)[1]}; expected what JSON has") from None


def _bank(settings: dict[str, Any], file: str | None) -> MemoryBank:
    """The lessons that the model was registered with, in memory."""
    name = str(settings["embedder"])
    embedder: Embedder | str = made_by(name) if ":" in name else name
    bank = MemoryBank.open(None, scope=settings["scope"], embedder=embedder)
    if file is not None:
        bank.import_jsonl(file)
    return bank
