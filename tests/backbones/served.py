"""A server on this machine that answers as OpenAI's would, or fails as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rb_dspy import BackboneConfig
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.backbones.patience import Patience

KEY = "RB_DSPY_TEST_KEY"
"""The variable that holds its key."""

SAID = {
    "`action`": "[[ ## thought ## ]]\nt\n\n[[ ## action ## ]]\n4711",
    "`label`": "[[ ## reasons ## ]]\nr\n\n[[ ## label ## ]]\nsuccess",
    "`memory_items`": "[[ ## analysis ## ]]\na\n\n[[ ## memory_items ## ]]\n"
    '[{"title": "T", "description": "d", "content": "x"}]',
}

Failure = tuple[int, dict[str, str]]
"""A status and headers."""


class Server:
    """Answers every step, unless it is ``failing`` after so many seconds of waiting, and keeps what it was ``sent``:
    path, body and headers. Who asks through ``lm`` does not sleep; what it would is added up.
    """

    def __init__(self) -> None:
        self.address = ""
        self.sent: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.waited = 0.0
        self.failing: Callable[[float], Failure | None] = lambda waited: None

    @property
    def asked(self) -> int:
        """How often."""
        return len(self.sent)

    def patience(self, chance: float = 1.0, **given: Any) -> Patience:
        async def asleep(seconds: float) -> None:
            self.sleep(seconds)

        return Patience(sleep=self.sleep, asleep=asleep, chance=lambda: chance, **given)

    def sleep(self, seconds: float) -> None:
        self.waited += seconds

    def config(self, **given: Any) -> BackboneConfig:
        return BackboneConfig(**{"model": "openai/large", "api_base": self.address, "api_key_env": KEY, **given})

    def lm(self, chance: float = 1.0, **given: Any) -> HostedLM:
        patience = self.patience(chance, **given)
        return HostedLM("openai/large", api_base=self.address, api_key="none", cache=False, patience=patience)


@contextmanager
def serving() -> Iterator[Server]:
    """One, for as long as the block lasts."""
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.sent.append((self.path, json.loads(asked), {name.lower(): it for name, it in self.headers.items()}))
            failure = found.failing(found.waited)
            status, headers = failure or (200, {})
            text = next((said for wanted, said in SAID.items() if wanted in asked), "ready")
            said = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
                "text": text,
            }
            body = {"error": {"message": "slow down"}} if failure else {"id": "1", "created": 0, "choices": [said]}
            data = json.dumps({"model": "large", **body}).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found.address = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield found
        http.shutdown()
        thread.join()
