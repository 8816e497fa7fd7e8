"""Servers on loopback, for a while: a real tracking server, or whatever answers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx


@contextmanager
def tracking_server(folder: Path, empty_store: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its address and its process. All that it keeps is below ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.copy(empty_store, folder / "server.sqlite")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.sqlite'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # else eight processes more
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        ends = time.monotonic() + 120
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < ends, (folder / "log").read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@contextmanager
def answering(how: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), how)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
