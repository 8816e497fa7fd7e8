"""What is tracked in these tests: scripted programs, made-up results, and a language model over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from rb_dspy import Compiled, ReasoningBank, Task, TaskStream
from rb_dspy.compile.result import Candidate
from rb_dspy.evaluation import Comparison, Interval
from rb_dspy.prompts import prompts_of, set_prompts, state_of
from rb_dspy.schema import RoleUsage
from rb_dspy.testing import Lock, Prompt
from tests.worlds import answers, backbones, lock

MARKER = "MARKER4711"
"""A code that no prompt and no observation shows."""
EMBEDDER = "hash"
BETTER = "Judge by the last observation alone."


def locks(number: int = 3, name: str = "locks", maker: str = "acme") -> TaskStream:
    """Tasks of which the last opens with the agent's first guess."""
    codes = [*[MARKER] * (number - 1), "0000"]
    return TaskStream(name, [lock(maker, n, code) for n, code in enumerate(codes)])


def opener(**kwargs: Any) -> ReasoningBank:
    """A program for ``locks``."""
    return ReasoningBank(backbones=backbones(**kwargs), environments=Lock.make)


def question(text: str = "What is the capital of Peru?") -> Task:
    return Task(id=f"question/{text[:20]}", instruction=text, env_args={"answer": "Lima"})


def compiled(program: ReasoningBank, *, gain: float = 0.3, low: float = 0.1) -> Compiled:
    """A compile that gave the judge another instruction."""
    before = prompts_of(program)
    after = {**before, "judge.predict": {**before["judge.predict"], "instructions": BETTER}}
    copy = program.deepcopy()
    set_prompts(copy, after)
    comparison = Comparison(
        before=0.5,
        after=0.5 + gain,
        difference=Interval(mean=gain, low=low, high=2 * gain - low),
        p=0.01,
        tasks=30,
        orders=8,
        verdict="LEARNING" if low > 0 else "UNRESOLVED",
        exploratory=True,
    )
    return Compiled(
        program=copy,
        state=state_of(copy),
        optimizer="gepa",
        step="judge",
        budget=40,
        metric_calls=38,
        seed=7,
        dev=comparison,
        held_out=comparison,
        measure="judge accuracy",
        prompts_before=before,
        prompts_after=after,
        candidates=[Candidate(score=0.5, prompts=before), Candidate(score=0.8, prompts=after)],
        usage={
            "judge": RoleUsage(calls=38, prompt_tokens=9000, completion_tokens=800, seconds=3.5),
            "reflection": RoleUsage(calls=2, prompt_tokens=1000, completion_tokens=100),
        },
        reflection="openai/gpt-4o",
        seconds=6.5,
        orders=8,
    )


class _Provider(BaseHTTPRequestHandler):
    """Answers chat requests as ``answers`` does, and notes who was asked with which key."""

    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((request["model"], self.headers.get("Authorization", "")))
        system, *rest = ((message["role"], message["content"]) for message in request["messages"])
        reply = answers(Prompt(system[1], tuple(rest)))
        assert isinstance(reply, dict)
        text = "".join(
            f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}\n\n"
            for name, value in reply.items()
        )
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        body = json.dumps({**answer, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def provider() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A model server on loopback: its address, and (model, key) of each request."""
    asked: list[tuple[str, str]] = []
    handler = type("Handler", (_Provider,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    loop = asyncio.new_event_loop()  # else litellm makes one, and never closes it
    asyncio.set_event_loop(loop)
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        server.shutdown()
        server.server_close()
        thread.join()
