"""The way into tracking: one object, made from the settings, that does nothing where tracking is off."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.state import prompts_of, signature_hash
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import BankProgram
from rb_dspy.schema import Task
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.tracking.described import (
    described,
    described_bank,
    described_streams,
    lms,
    models,
    models_of_compile,
    proposer,
    settled,
    title,
    told,
)
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.hidden import Hidden
from rb_dspy.tracking.names import fitting_name
from rb_dspy.tracking.off import NoRun

if TYPE_CHECKING:  # what is below imports MLflow, or may
    from rb_dspy.compile.result import Compiled
    from rb_dspy.matts import MaTTS
    from rb_dspy.program import ReasoningBank
    from rb_dspy.tracking.compiles import CompileRun
    from rb_dspy.tracking.matrices import MatrixRun
    from rb_dspy.tracking.rebuilt import BackbonesLike
    from rb_dspy.tracking.run import Kind, Run
    from rb_dspy.tracking.streams import StreamRun

_LONGEST = 230
"""Characters of a name that is made here: MLflow's databases hold 250, and what became of lessons is put behind it."""


class Tracker:
    """Keeps what runs do in MLflow.

    With ``enabled=False`` runs are not kept, and MLflow is never imported. Else the place is looked at here, and made
    where it is new: raises ``ConfigError`` for one that cannot be used. From then on nothing that has to do with
    tracking a run raises: what fails is said once, in one line of the log, and the run goes on.

    A place that the configuration does not name is MLflow's own: that of the active run, or of ``MLFLOW_TRACKING_URI``,
    ``mlflow.set_tracking_uri`` and ``mlflow.set_experiment``, as they are now. Inside ``with mlflow.start_run()`` a run
    is nested in that one if it is in the same place, and no other experiment is configured. Runs do not change MLflow's
    settings, which belong to the whole process; ``register``, ``promote`` and ``load`` do while they work, and put them
    back.
    """

    def __init__(self, config: TrackingConfig | str | None = None) -> None:
        """``config``: also the address alone, as ``TrackingConfig.uri`` takes it. Raises ``ConfigError`` for others."""
        self.config = _config(config)
        self._place: Any = None
        if self.config.enabled is not False:
            from rb_dspy.tracking.where import Place

            self._place = Place(self.config)

    @contextmanager
    def stream_run(
        self,
        program: BankProgram,
        stream: TaskStream | Sequence[Task | str],
        bank: MemoryBank,
        *,
        run_id: str,
        name: str = "",
        params: Mapping[str, Any] | None = None,
        left_out: Collection[str] = (),
    ) -> Iterator[StreamRun | NoRun]:
        """A run of ``program`` over ``stream``, which is what ``run_stream`` takes: give it this run's ``on_result``.

        Totals, pictures and the bank are logged when the block ends, however it ends. ``finish`` does so before, where
        MLflow is to be read inside of the block; nothing else needs it.

        ``run_id`` is the stream's: MLflow's run is called by it too, and so is the session of its traces. A
        ``run_stream`` of another one refuses to begin with this ``on_result``, and ``on_result`` and ``finish`` refuse
        what is of another one, with ``InputError``. There is one trace a task, also where several are done at the same
        time with asyncio. A thread of your own has them if it is given this context
        (``contextvars.copy_context().run``); of two trackers around one run the inner one has them. ``params``: what
        else there is to say, such as seeds. ``left_out``: ids of tasks that are not in ``stream`` since ``bank`` has
        learned from them, which are counted as skipped.

        The parameter ``memory`` says what became of lessons: ``on``, ``frozen`` (shown, and none learned, with
        ``learn=False``), ``unshown`` (learned, and none shown, with ``RetrieveConfig(k=0)``), or ``off`` (neither). The
        first task that comes to its end tells, unless ``params`` does. Raises ``InputError`` for what is no stream of
        tasks.
        """
        stream = TaskStream.of(stream)
        titled = f"{f'{run_id}: ' if run_id else ''}{stream.name}, {title(program)}"[:_LONGEST]
        with self._run(name or titled, "stream", program, params) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.continued import Before
            from rb_dspy.tracking.memory import Lessons
            from rb_dspy.tracking.streams import StreamRun
            from rb_dspy.tracking.traces import Traces
            from rb_dspy.tracking.writing import TraceWriter

            run.guard("describing the bank", lambda: run.params(described_bank(bank)))
            run.params(
                {"stream": stream.name, "stream.tasks": len(stream), "stream.digest": stream.digest, "run_id": run_id}
            )
            run.dataset(stream, "stream")
            run.guard(
                "keeping the prompts", lambda: run.text("prompts.json", json.dumps(prompts_of(program), indent=1))
            )
            traces = None
            if self.config.traces:
                metadata = {"mlflow.trace.session": run_id, **({"mlflow.sourceRun": run.id} if run.id else {})}
                writer = TraceWriter(run.place, run.guard.part(), metadata)
                traces = Traces(writer, run.guard.part(), program, run.hidden)
            lessons = Lessons(run, program, (params or {}).get("memory"), "" if name else titled)
            before = run.guard("looking for what was done before", Before.of, bank, stream, run_id, left_out)
            tracked = StreamRun(run, run_id, bank, models(program.backbones), traces, lessons, before or Before())
            try:
                if traces is None:
                    yield tracked
                else:
                    with traces.listening():
                        yield tracked
            finally:
                tracked.finish()

    @contextmanager
    def compile_run(
        self,
        name: str,
        program: BankProgram,
        streams: Streams,
        *,
        reflection: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[CompileRun | NoRun]:
        """A compile of ``program``: give its ``on_progress`` to ``compile_program``, and the result to
        ``log_compiled``.

        ``name`` says for what: the run is called ``compile NAME``, and a predictor's prompt ``NAME.PREDICTOR``
        (with ``-`` for what MLflow's registry does not take).
        ``reflection``: who proposes prompts, if not the program's own, so that its price is known, and errors that
        quote its key or address can be kept without them. Calls of candidates are not traced: there are thousands.
        """
        with self._run(f"compile {name}", "compile", program, params, [reflection]) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.compiles import CompileRun

            given = run.guard("naming who proposes prompts", proposer, reflection) or {}
            run.params({f"lm.{role}": model for role, model in given.items()})
            run.params(described_streams(streams))
            for split in ("compile", "dev", "held_out"):
                run.dataset(getattr(streams, split), split)
            yield CompileRun(run, fitting_name(name), {**models_of_compile(program.backbones), **given})

    @contextmanager
    def evaluation(
        self,
        name: str,
        program: BankProgram | None = None,
        stream: TaskStream | Sequence[Task | str] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[Run | NoRun]:
        """A run that compares: log to it what there is, with ``params``, ``metrics``, ``table``, ``text``.

        ``stream``: as for ``stream_run``, and raises the same.
        """
        stream = None if stream is None else TaskStream.of(stream)
        with self._run(name, "evaluation", program, params) as run:
            if run is None:
                yield NoRun()
                return
            if stream is not None:
                run.dataset(stream, "held_out")
            yield run

    @contextmanager
    def matrix_run(
        self,
        name: str,
        program: BankProgram,
        backbones: Mapping[str, Backbones],
        stream: TaskStream | Sequence[Task | str],
        bank: MemoryBank | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[MatrixRun | NoRun]:
        """A matrix of programs like ``program`` and ``backbones`` over ``stream``, from ``bank``: give its ``on_cell``
        to ``matrix``, and the result to ``log_matrix``.

        Of a backbone the names of its models are kept. The program's own are not: it plays with none of them.
        ``stream``: as for ``stream_run``, and raises the same.
        """
        stream = TaskStream.of(stream)
        others = [lm for each in backbones.values() for lm in lms(each)]
        with self._run(name, "evaluation", None, params, others) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.matrices import MatrixRun

            run.guard("describing the program", lambda: run.params(settled(program)))
            run.guard("naming the signatures", lambda: run.params({"signatures": signature_hash(program)}))
            run.params({"stream": stream.name, "stream.tasks": len(stream), "stream.digest": stream.digest})
            if bank is not None:
                run.guard("describing the bank", lambda: run.params(described_bank(bank)))
            run.dataset(stream, "held_out")
            yield MatrixRun(run, {each: models(played) for each, played in backbones.items()})

    def register(
        self,
        compiled: Compiled | None,
        program: BankProgram,
        name: str,
        *,
        backbones: BackbonesLike | None = None,
        bank: MemoryBank | None = None,
        embedder: str = "minilm",
        environments: str | None = None,
    ) -> int:
        """Make ``program`` a new version of the registered model ``name``; its number.

        In the model are the prompts, the settings, the lessons of ``bank`` where one is given, and the names of the
        language models: those of ``backbones``, of the program where none are given. ``backbones`` may also be
        ``package.module:attribute`` of a function without arguments that makes them where the model is loaded, which is
        how keys and addresses get there; they are never kept. ``embedder`` names the bank's; ``environments``, likewise
        by place, the program's where they are not the installed ones.

        ``compiled`` is None for a program that was not compiled; else it must be what ``program`` has its prompts from,
        or began with those that ``program`` has: then a copy with the compiled ones is registered.
        The version becomes ``champion`` where ``compiled`` says that held-out tasks show it to be better. It takes the
        place of another champion only where it was compiled from that one's prompts, or where both were measured in
        the same way on the same tasks; on the same tasks it must have done better. Raises ``InputError`` for a
        program that has yet other prompts, or that could not be made again from the model,
        ``ConfigError`` where tracking is off, or code of your own that is named here breaks, ``StorageError`` where
        MLflow's database or the folder of its files cannot be written, ``InfrastructureError`` where its server breaks
        or does not answer.
        """
        from rb_dspy.tracking.registry import register

        return register(
            self._there(),
            compiled,
            program,
            name,
            backbones=backbones,
            bank=bank,
            embedder=embedder,
            environments=environments,
        )

    def promote(self, name: str, version: int, *, force: bool = False) -> None:
        """Make a version, and its prompts, ``champion``.

        Raises ``InputError`` where held-out tasks do not say that it is better than the program it came from: the
        interval of the difference must be above 0; and where nobody knows whether it is better than the champion: see
        ``register``. With ``force`` it becomes champion all the same, and the version keeps a note of it. Raises the
        same as ``register`` where MLflow cannot be asked.
        """
        from rb_dspy.tracking.promotion import promote

        promote(self._there(), name, version, force=force)

    def load(
        self, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
    ) -> Any:
        """A registered program as an MLflow pyfunc: the champion of a name or a ``version`` of it by number, or what a
        URI such as ``models:/NAME/2`` says.

        ``predict([{"instruction": "..."}])`` gives an ``AnswerOut`` for each task. ``backbones``: other ones than those
        it was registered with. Raises ``SignatureChanged`` or ``DspyTooOld`` where its prompts are not for what is
        installed here, ``InputError`` where there is no such model, or no version of it that is champion, and the same
        as ``register`` where MLflow cannot be asked, or code of your own that was named there breaks.
        """
        from rb_dspy.tracking.registry import load

        return load(self._there(), name_or_uri, backbones, version=version)

    def program(
        self, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
    ) -> ReasoningBank | MaTTS:
        """A registered program as ``load`` finds it, with its prompts, to learn with a bank of yours.

        Its own lessons stay in the model. Raises like ``load``, and like ``Backbones`` where one of its language models
        cannot be used here: give others.
        """
        from rb_dspy.tracking.registry import program

        return program(self._there(), name_or_uri, backbones, version=version)

    def _there(self) -> Any:
        if self._place is None:
            raise ConfigError("tracking is off, and models are kept in MLflow; set tracking.enabled=true")
        return self._place

    @contextmanager
    def _run(
        self,
        name: str,
        kind: Kind,
        program: BankProgram | None,
        params: Mapping[str, Any] | None,
        others: Iterable[Any] = (),
    ) -> Iterator[Run | None]:
        """A run that is described as far as all runs are; None where tracking is off.

        ``others``: language models besides the program's, so that errors can be kept without what they quote of them.
        """
        if self._place is None:
            yield None
            return
        from rb_dspy.tracking.run import Run
        from rb_dspy.tracking.where import limited

        guard = Guard()
        with limited():
            hidden = Hidden([*(lms(program.backbones) if program is not None else ()), *others])
            place, parent = guard("looking for an active run", self._place.in_active_run) or (self._place, "")
            run = Run.begun(place, guard, name, kind, parent=parent, hidden=hidden)
            with run.ending():
                if program is not None:
                    guard("describing the program", lambda: run.params(described(program)))
                    guard("naming the signatures", lambda: run.params({"signatures": signature_hash(program)}))
                    prompts = "prompts.before" if kind == "compile" else "prompts"
                    guard("naming the prompts", lambda: run.params(told(program, prompts)))
                run.params(params or {})
                yield run


def _config(given: TrackingConfig | str | object | None) -> TrackingConfig:
    if isinstance(given, TrackingConfig):
        config = given
    elif given is None or (isinstance(given, str) and given):
        config = TrackingConfig() if given is None else TrackingConfig(uri=given)
    else:
        raise ConfigError(f"got {type(given).__name__} for a tracker; expected a TrackingConfig, or its uri")
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or "uri" in config.model_fields_set or config.enabled is False or mlflow.active_run() is None:
        return config
    return config.model_copy(update={"uri": mlflow.get_tracking_uri()})  # a run may be in a place that is set nowhere
