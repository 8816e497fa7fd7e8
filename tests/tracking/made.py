"""Things to track, made by hand: quick, and the same every time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

import dspy

from rb_dspy.backbones import Backbones
from rb_dspy.compile.result import Compiled, Found, Hashes, Scores
from rb_dspy.compile.scores import Comparison, Estimate
from rb_dspy.compile.state import prompts_of, set_prompts, signature_hash, state_of
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import RoleUsage, Task
from rb_dspy.stream import TaskStream
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.tracking.servers import answering
from tests.worlds import answers, lock

BETTER = "Judge by the last observation alone: a lock that did not open was not opened."
_STAGES = {"judge": ("judge.predict", "judge accuracy"), "agent": ("act.predict", "tasks solved with given lessons")}
"""The predictor that is compiled, and what is measured."""


def locks(number: int = 6, name: str = "locks") -> TaskStream:
    """Tasks of two makers in turn."""
    makers = ("acme", "bolt")
    return TaskStream(name, tuple(lock(makers[n % 2], n // 2, "4711" if n % 2 else "0000") for n in range(number)))


def capitals(number: int = 3) -> TaskStream:
    """Questions with an answer, for programs without environments of their own."""
    known = (("France", "Paris"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Japan", "Tokyo"))[:number]
    return TaskStream(
        "capitals",
        tuple(
            Task(id=f"capital/{land}", instruction=f"What is the capital of {land}?", env_args={"answer": city})
            for land, city in known
        ),
    )


def compiled(
    program: ReasoningBank | MaTTS,
    *,
    stage: Literal["judge", "agent"] = "judge",
    gain: float = 0.2,
    reach: float = 0.1,
    after: float = 0.7,
) -> Compiled:
    """The result of a compile that gave the judge of ``program``, or its agent, another instruction, which it has now.

    On held-out tasks it gained ``gain``, give or take ``reach``, and reached ``after``.
    """
    predictor, measure = _STAGES[stage]
    before = prompts_of(program)
    seed = Found(score=after - gain, prompts=before)
    prompts = {**before, predictor: {**before[predictor], "instructions": BETTER}}
    set_prompts(program, prompts)
    comparison = Comparison(
        before=Estimate(mean=after - gain, low=after - gain - 0.2, high=after - gain + 0.2, tasks=20),
        after=Estimate(mean=after, low=after - 0.2, high=min(1.0, after + 0.2), tasks=20),
        difference=Estimate(mean=gain, low=gain - reach, high=gain + reach, tasks=20),
    )
    return Compiled(
        program=program,
        state=state_of(program),
        optimizer="gepa",
        stage=stage,
        budget=40,
        metric_calls=38,
        seed=7,
        scores=Scores(dev=comparison, held_out=comparison),
        measure=measure,
        prompts_before=before,
        prompts_after=prompts,
        usage={
            "judge": RoleUsage(calls=38, prompt_tokens=9000, completion_tokens=800, seconds=3.5),
            "reflection": RoleUsage(calls=4, prompt_tokens=4000, completion_tokens=900, seconds=2.0),
        },
        seconds=6.5,
        examples={"train": 12, "dev": 6},
        candidates=[seed, Found(score=after, prompts=prompts)],
        hashes=Hashes(signatures=signature_hash(program), compile="c0ffee", dev="deca", held_out="feed"),
        versions={"rb_dspy": "0.1.0", "dspy": "3.4.1"},
    )


def questions(prompt: Prompt) -> Reply:
    """Knows capitals; plays the other roles like ``answers``."""
    if "action" in prompt.wants:
        known = {task.instruction: str(task.env_args["answer"]) for task in capitals(4)}
        said = next((city for asked, city in known.items() if asked in prompt.text), "no idea")
        return {"thought": "I know it.", "action": said}
    return answers(prompt)


def known() -> Backbones:
    """For a model that is served: it names this function."""
    return Backbones(agent=scripted_lm(questions, model="scripted/known"))


def _fields(reply: Mapping[str, Any]) -> str:
    return "".join(
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}\n\n"
        for name, value in reply.items()
    )


class OverHttp(BaseHTTPRequestHandler):
    """A provider on loopback, so that a real LM with a key and an address can be used; it plays every role."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        system, *rest = ((message["role"], message["content"]) for message in asked["messages"])
        prompt = Prompt(system[1], tuple(rest))
        reply = {"answer": "blue"} if prompt.wants == ("answer",) else answers(prompt)  # the first is a probe
        text = reply if isinstance(reply, str) else _fields(reply)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def provider() -> AbstractContextManager[int]:
    """The port of a provider that answers."""
    return answering(OverHttp)


def secretive(port: int, canary: str) -> Backbones:
    """An LM with a key and an address that must not be seen anywhere."""
    return Backbones(
        agent=dspy.LM(
            "openai/secretive",
            api_key=f"key-{canary}",
            api_base=f"http://127.0.0.1:{port}/{canary}/v1",
            cache=False,
            num_retries=0,
        )
    )
