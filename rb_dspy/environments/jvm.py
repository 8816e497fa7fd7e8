"""One Java process that py4j calls into.

TextWorldExpress's own Python class starts a JVM for every game, from whatever ``java`` is on the PATH, and lets any
local user call into it. Here one JVM serves the whole process: it listens on a random port of the loopback interface,
takes calls only with a token that it hands out on its standard output, and ends when its standard input closes, which
happens even when this process is killed. It starts in 0.15 s.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rb_dspy.environments.java import plain_environ, reason
from rb_dspy.errors import InfrastructureError, RBError

START_SECONDS = 60.0
"""How long the JVM may take to start."""

CALL_SECONDS = 60.0
"""How long one call may take; games answer in milliseconds."""

_MOST_READ = 2_000
"""Bytes of what it says, should it not start."""

_JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
"""Small and quick to start: the default heap is a quarter of the machine, and the default collector a thread a core."""


class Jvm:
    """A running Java process with the engine on its class path, and the gateway into it.

    Raises ``InfrastructureError``, with what Java said, where it does not start. Safe to call from several threads.
    """

    def __init__(self, java: Path) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
        from textworld_express.constants import JAR_PATH

        self.pid = os.getpid()
        classpath = os.pathsep.join((find_jar_path(), JAR_PATH))
        command = [str(java), *_JAVA_OPTIONS, "-classpath", classpath, "py4j.GatewayServer"]
        with tempfile.TemporaryFile() as stderr:
            self.process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],  # 0: a free port
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=Path(JAR_PATH).parent,  # the engine opens its data files by their bare names
                env=plain_environ(),
                process_group=0,  # Ctrl-C in a terminal is for this process to handle, not for the JVM to die of
            )
            port, token = self._greeting()
            if not (port.isascii() and port.isdigit() and token):
                self._end()
                stderr.seek(0)
                said = reason(port, token, stderr.read(_MOST_READ).decode(errors="replace"))
                raise InfrastructureError(f"the game engine did not start with {java}: {said}")
        parameters = GatewayParameters(
            address="127.0.0.1", port=int(port), auth_token=token, read_timeout=CALL_SECONDS, auto_field=False
        )
        self.gateway: Any = JavaGateway(gateway_parameters=parameters)
        self._client = self.gateway._gateway_client
        # py4j sends a call again where no answer came: a step might be played twice, and it leaks the second socket.
        self._client._should_retry = lambda *_: False

    def _greeting(self) -> tuple[str, str]:
        """Port and token, a line each; empty where the process ended first, or is killed for taking too long.

        A Java that does not start may say why there, in place of them.
        """
        assert self.process.stdout is not None
        late = threading.Timer(START_SECONDS, self.process.kill)
        late.daemon = True
        late.start()
        try:
            port, token = (self.process.stdout.readline(_MOST_READ).decode(errors="replace").strip() for _ in range(2))
        finally:
            late.cancel()
        # Nothing reads on, so what the engine prints must have nowhere to go, or a full pipe would stop it.
        self.process.stdout.close()
        return port, token

    @contextlib.contextmanager
    def calls(self, refused: type[RBError] = InfrastructureError) -> Iterator[Any]:
        """For calls into the JVM: ``refused`` for what Java code raises, ``InfrastructureError`` where it is gone."""
        from py4j.protocol import Py4JError, Py4JJavaError

        stopped = "the game engine stopped answering; the next task starts it again"
        if not self.alive:  # py4j leaks a socket with every connection that is refused
            raise InfrastructureError(stopped)
        try:
            yield self.gateway.jvm
        except Py4JJavaError as exc:
            said = str(exc.java_exception.getMessage() or "").strip() or "it gave no reason"
            raise refused(f"the game engine refused: {said}") from None
        except (Py4JError, OSError):
            self._client.is_connected = False  # whatever it was, this JVM is not to be trusted with another game
            raise InfrastructureError(stopped) from None

    @property
    def alive(self) -> bool:
        """Whether calls can be made: the process runs, and no call has failed to reach it."""
        return self._client.is_connected and self.process.poll() is None

    def close(self) -> None:
        # Proxies of Java objects say goodbye when they are collected; this keeps them from calling a JVM that is gone.
        self._client.is_connected = False
        self.gateway.close()
        self._end()

    def _end(self) -> None:
        self.process.kill()  # nothing in it outlives a game
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
