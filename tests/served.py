"""A language model that answers over HTTP on loopback, and the command line in a folder that uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rb_dspy.cli import output
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import lessons

TASKS = [
    {"id": f"sum/{n}", "instruction": f"What is {n} and 5?", "env_args": {"answer": str(n + 5 if n < 3 else 0)}}
    for n in range(1, 4)
]
"""Of these the last one is answered wrongly: its answer is said to be 0."""


def adds(prompt: Prompt) -> dict[str, Any]:
    if prompt.role == "agent":
        number = prompt.text.rsplit("What is ", 1)[1].split()[0]
        return {"thought": "I add.", "action": str(int(number) + 5)}
    if prompt.role == "judge":
        return {"reasons": "Added again.", "label": "success"}
    if prompt.role == "selector":
        return {"analysis": "Alike.", "choice": 1}
    return lessons(("Add twice", "Add, and add again."))


@dataclass
class Served:
    """A provider: ``refuse`` says for a prompt with which HTTP status, or None, it is refused."""

    refuse: Callable[[Prompt], int | None] = lambda prompt: None
    play: Callable[[Prompt], Any] = lambda prompt: adds(prompt)
    prompts: list[Prompt] = field(default_factory=list)
    checks: list[Prompt] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Model and key of each request."""
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        system, *rest = ((message["role"], _text(message["content"])) for message in asked["messages"])
        prompt = Prompt(system[1], tuple(rest))
        check = prompt.wants in ((), ("answer",))  # by `models check`, and before a command pays for anything
        (self.checks if check else self.prompts).append(prompt)
        status = self.refuse(prompt)
        if status is not None:
            return status, {"error": {"message": "refused", "type": "refused", "code": "refused"}}
        fields = {"answer": "blue"}.items() if check else self.play(prompt).items()
        parts = [
            f"[[ ## {name} ## ]]\n{each if isinstance(each, str) else json.dumps(each)}\n" for name, each in fields
        ]
        text = json.dumps(dict(fields)) if "response_format" in asked else "\n".join(parts)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}
        made = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        return 200, made


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@contextmanager
def serving(provider: Served) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            provider.asked.append((request["model"], self.headers.get("Authorization", "")))
            status, answer = provider.answer(request)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(Served()) as provider:
        yield provider


CONFIG = """
[bank]
embedder = "hash"
[backbones.agent]
model = "openai/scripted"
api_base = "http://127.0.0.1:{port}/v1"
"""


@pytest.fixture
def cli(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The installed command in this process, in a folder with tasks and an ``rb.toml``: exit code, stdout, stderr."""
    install_embedder(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for console in (output.out, output.err):
        console.width = 200
    monkeypatch.chdir(tmp_path)
    Path("rb.toml").write_text(CONFIG.format(port=served.port))
    Path("tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    main = entry_points(group="console_scripts", name="rb-dspy")["rb-dspy"].load()

    def call(*args: str) -> tuple[int, str, str]:
        code = main([*args])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def install_embedder(site: Path) -> None:
    """A package that brings a quick embedder, as anybody's would."""
    about = site / "scenario_embedder-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scenario-embedder\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rb_dspy.embedders]\nhash = rb_dspy.testing:HashEmbedder\n")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextmanager
def private() -> Iterator[None]:
    """Whatever the block writes into the working directory is for its owner only, under the widest umask."""

    def files() -> set[Path]:
        return {path for path in Path().rglob("*") if path.is_dir() or path.stat().st_size}  # locks are empty

    before, usual = files(), os.umask(0)
    try:
        yield
    finally:
        os.umask(usual)
    written = files() - before
    assert written
    assert not [str(path) for path in written if path.stat().st_mode & 0o077]
