"""``Tracker``: logs runs and registers programs in MLflow; does nothing if tracking is off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rb_dspy.bank import MemoryBank
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import ConfigError
from rb_dspy.matts import BankProgram
from rb_dspy.schema import Task
from rb_dspy.stream import Streams, TaskStream

if TYPE_CHECKING:  # these import MLflow
    from rb_dspy.compile.result import Compiled
    from rb_dspy.tracking.connection import RunLog
    from rb_dspy.tracking.registry import ProgramVersion
    from rb_dspy.tracking.runs import CompileRun, EvaluationRun, StreamRun
    from rb_dspy.tracking.settings import BackbonesLike


class NoRun:
    """A run that is not tracked: accepts every call, logs nothing."""

    id: str | None = None

    def _ignore(self, value: object) -> None:
        pass

    on_result = on_progress = log_compiled = log_report = _ignore


class Tracker:
    """Logs what runs do in MLflow, and registers programs there.

    Without settings it uses MLflow's own: ``MLFLOW_TRACKING_URI``, ``mlflow.set_tracking_uri``,
    ``mlflow.set_experiment``, and an active run, inside which its runs are nested. ``TrackingConfig.uri`` and
    ``.experiment`` override them for the process, as ``mlflow.set_tracking_uri`` and ``mlflow.set_experiment`` do. If
    the store fails during a run, one warning is logged and the run continues without it. What needs registered programs
    raises ``ConfigError`` if tracking is off, and ``InfrastructureError`` if the store failed.

    Args:
        config: Settings, or only the address; ``enabled=False`` tracks nothing and never imports MLflow.

    Raises:
        ConfigError: The store cannot be used.
    """

    def __init__(self, config: TrackingConfig | str | None = None) -> None:
        if config is not None and not isinstance(config, TrackingConfig | str):
            raise ConfigError(f"Tracker: got {type(config).__name__}; expected a TrackingConfig, or an address")
        self.config = TrackingConfig(uri=config) if isinstance(config, str) else config or TrackingConfig()
        if self._enabled:
            from rb_dspy.tracking.connection import connect

            connect(self.config)

    @contextmanager
    def stream_run(
        self,
        program: BankProgram,
        stream: TaskStream | Iterable[Task | str | Mapping[str, Any]],
        bank: MemoryBank,
        *,
        run_id: str,
        name: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamRun | NoRun]:
        """Track ``run_stream(program, stream, bank, run_id=run_id, on_result=run.on_result)``.

        Each task is a trace, if ``TrackingConfig.traces``; ``run_id`` is their session. Totals, the learning curve, the
        table of results and the bank are logged when the block ends, however it ends.

        Args:
            program: The program that does the tasks.
            stream: As ``run_stream`` takes it.
            bank: The bank of ``run_stream``.
            run_id: The run of the stream.
            name: Name of the MLflow run; default: the run id and the stream's name.
            params: Additional parameters to log.

        Raises:
            ConfigError: The store cannot be used.
            InputError: ``stream`` is not one.
        """
        stream = TaskStream.of(stream)
        with self._run("stream", name or f"{run_id}: {stream.name}"[:250], params) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.runs import StreamRun
            from rb_dspy.tracking.traces import TaskTraces

            traces = TaskTraces(run, run_id) if self.config.traces else None
            tracked = StreamRun(run, program, stream, bank, run_id, traces)
            try:
                with traces.record() if traces else nullcontext():
                    yield tracked
            finally:
                tracked.finish()

    @contextmanager
    def compile_run(
        self, name: str, program: BankProgram, streams: Streams, *, params: Mapping[str, Any] | None = None
    ) -> Iterator[CompileRun | NoRun]:
        """Track a compile: pass ``run.on_progress`` to ``compile_program``, and its result to ``run.log_compiled``.

        Calls of candidates are not traced. Raises like ``stream_run``.
        """
        with self._run("compile", f"compile {name}", params) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.runs import CompileRun

            parts = {part: getattr(streams, part) for part in ("compile", "dev", "held_out")}
            yield CompileRun(run, program, parts)

    @contextmanager
    def evaluation_run(
        self,
        name: str,
        stream: TaskStream | Iterable[Task | str | Mapping[str, Any]],
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[EvaluationRun | NoRun]:
        """Track an evaluation: pass ``run.on_progress`` to ``evaluate``, and its report to ``run.log_report``.

        Raises like ``stream_run``.
        """
        stream = TaskStream.of(stream)
        with self._run("evaluation", f"evaluate {name}", params) as run:
            if run is None:
                yield NoRun()
                return
            from rb_dspy.tracking.runs import EvaluationRun

            yield EvaluationRun(run, stream)

    def register(
        self,
        compiled: Compiled | None,
        program: BankProgram,
        name: str,
        *,
        bank: MemoryBank | None = None,
        embedder: str = "minilm",
        environments: str | None = None,
        backbones: BackbonesLike | None = None,
    ) -> int:
        """Register ``program`` as a new version of the model ``name``, and return the version's number.

        It becomes the ``champion`` if ``compiled.improved``.

        Args:
            compiled: Its prompts are registered; None: those of ``program``.
            program: Its settings are registered.
            name: Letters, digits, ``_``, ``-`` and spaces.
            bank: The lessons that the model serves with; None: no lessons.
            embedder: The name of the bank's embedder.
            environments: ``package.module:attribute`` of the program's environments, unless they are installed ones.
            backbones: Replace the program's own. Names, addresses and sampling settings are stored, never a key.

        Raises:
            InputError: The program cannot be stored, or the name cannot be used.
        """
        registry = self._registry()
        stored: dict[str, Any] = {"embedder": embedder, "environments": environments, "backbones": backbones}
        settings = registry.check(program, name, bank=bank, **stored)
        number: int = registry.register(compiled, program, name, bank, settings)
        return number

    def check(self, program: BankProgram, name: str, **options: Any) -> None:
        """Check before a compile that ``register`` will accept its result. Options and errors as in ``register``."""
        self._registry().check(program, name, **options)

    def promote(self, name: str, version: int, *, force: bool = False) -> None:
        """Make a version the ``champion``.

        Raises:
            InputError: There is no such version, or held-out tasks show no improvement and ``force`` is False.
        """
        self._registry().promote(name, version, force=force)

    def programs(self, name: str | None = None) -> list[ProgramVersion]:
        """Every version of the program ``name``, or of all programs, by name and number."""
        found: list[ProgramVersion] = self._registry().programs(name)
        return found

    def load(
        self, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
    ) -> Any:
        """A registered program as an MLflow pyfunc: ``predict([{"instruction": "..."}])`` answers.

        Args:
            name_or_uri: A name, which means its champion unless ``version`` is set; or a URI, ``models:/NAME/2``.
            backbones: None: those of ``rb.toml`` in the current folder or of ``RB_DSPY_BACKBONES__...``, else those
                that it was registered with.
            version: The version number.

        Raises:
            InputError: There is no such program or version, no champion, or rb_dspy did not register it.
            SignatureChanged: Its prompts were compiled for other signatures than those installed here.
        """
        return self._registry().load(name_or_uri, backbones, version)

    def state(self, name_or_uri: str, *, version: int | str | None = None) -> dict[str, Any]:
        """The prompts of a registered program, as ``set_state`` takes them. No code of the model is loaded."""
        found: dict[str, Any] = self._registry().state(name_or_uri, version)
        return found

    def program(
        self, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
    ) -> BankProgram:
        """A registered program itself, to use with your own bank. Arguments and errors as in ``load``."""
        program: BankProgram = self.load(name_or_uri, backbones, version=version).unwrap_python_model().program
        return program

    @property
    def _enabled(self) -> bool:
        return self.config.enabled is not False

    @contextmanager
    def _run(self, kind: str, name: str, params: Mapping[str, Any] | None) -> Iterator[RunLog | None]:
        """A new run of MLflow; None if tracking is off."""
        if not self._enabled:
            yield None
            return
        from rb_dspy.tracking.connection import start_run

        with start_run(self.config, kind, name) as run:
            run.params(dict(params or {}))
            yield run

    def _registry(self) -> Any:
        if not self._enabled:
            raise ConfigError("programs are registered in MLflow, but tracking is off; set tracking.enabled=true")
        from rb_dspy.tracking import connection, registry

        connection.connect(self.config)
        return registry
