"""``mlflow models serve`` in another process, with another language model, over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from rb_dspy import BackboneConfig, MemoryBank, ReasoningBank, Tracker
from rb_dspy.testing import locksmith
from tests.served import Served, serving
from tests.tracking.helpers import EMBEDDER

_ROOT = Path(__file__).parents[2]


@contextmanager
def served(uri: str, folder: Path, site: Path, **variables: str) -> Iterator[str]:
    """The address of a server that is run in ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", uri, "--env-manager", "local"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as in an activated environment
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{_ROOT}{os.pathsep}{site}", **variables}
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        ends = time.monotonic() + 240
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/ping", timeout=5).status_code == 200:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.stress
def test_a_registered_program_is_served_with_the_backbones_of_that_place(
    tracker: Tracker, bank: MemoryBank, site: Path, tmp_path: Path
) -> None:
    bank.add("Codes of acme", "What acme made opens with 4711.")
    with serving(Served(play=locksmith)) as here, serving(Served(play=locksmith)) as there:
        backbones = {"agent": BackboneConfig(model="openai/here", api_base=here.address, num_retries=0)}
        version = tracker.register(None, ReasoningBank(), "served", bank=bank, embedder=EMBEDDER, backbones=backbones)
        (tmp_path / "rb.toml").write_text(f'[backbones.agent]\nmodel = "openai/there"\napi_base = "{there.address}"\n')
        with served(f"models:/served/{version}", tmp_path, site, OPENAI_API_KEY="sk-there") as address:
            task = {"instruction": "Open the lock that acme made.", "env_args": {"answer": "4711"}}
            response = httpx.post(f"{address}/invocations", json={"inputs": [task]}, timeout=60)
    assert response.status_code == 200, response.text
    (answer,) = response.json()["predictions"]
    assert (answer["answer"], answer["lessons"], answer["error"]) == ("4711", ["Codes of acme"], "")
    assert there.asked == [("there", "Bearer sk-there")]
    assert here.asked == []
