"""What is asked of models to see whether they answer, and how what they lack is told."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.backbones.check import check, unusable
from rb_dspy.config import BackboneConfig
from rb_dspy.testing import Prompt, Reply, scripted_lm

KEY = "RB_DSPY_TEST_KEY"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that answers as OpenAI's does, and the models it was asked for."""
    models: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            models.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"])
            said = {"role": "assistant", "content": "[[ ## answer ## ]]\nBlue.\n\n[[ ## completed ## ]]"}
            body = {"id": "1", "object": "chat.completion", "created": 0, "model": models[-1]}
            body |= {"choices": [{"index": 0, "finish_reason": "stop", "message": said}]}
            body |= {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv(KEY, "none")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", models
        server.shutdown()
        thread.join()


def test_a_model_that_roles_share_is_asked_once(asked: tuple[str, list[str]]) -> None:
    base, models = asked

    def config(name: str) -> BackboneConfig:
        return BackboneConfig(model=f"openai/{name}", api_base=base, api_key_env=KEY)

    results = list(check({"agent": config("large"), "judge": config("small"), "selector": config("large")}))
    assert [(each.role, each.model.partition("/")[2], each.answer) for each in results] == [
        ("agent", "large", "Blue."),
        ("judge", "small", "Blue."),
        ("distiller", "large", "Blue."),
        ("contraster", "large", "Blue."),
        ("selector", "large", "Blue."),
    ]
    assert sorted(models) == ["large", "small"]


def test_a_key_that_is_not_there_is_told_in_words_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = BackboneConfig(model="openai/gpt-4o-mini")
    told = "no key: export OPENAI_API_KEY, or name its variable in api_key_env"
    assert {each.problem for each in check({"agent": config})} == {told}
    assert unusable(Backbones(agent=config)) == f"openai/gpt-4o-mini: {told}"


def test_a_model_that_answers_can_be_used_whatever_it_says(asked: tuple[str, list[str]]) -> None:
    base, models = asked
    large = BackboneConfig(model="openai/large", api_base=base, api_key_env=KEY)
    assert unusable(Backbones.from_settings({"agent": large, "judge": large})) == ""
    assert models == ["large"]


def test_settings_that_differ_are_another_model(asked: tuple[str, list[str]]) -> None:
    base, models = asked
    plain = BackboneConfig(model="openai/large", api_base=base, api_key_env=KEY)
    assert not any(each.problem for each in check({"agent": plain, "judge": plain.model_copy(update={"timeout": 9})}))
    assert models == ["large", "large"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lm15.AuthError("bad key"), "scripted/lm: the provider refused the key"),
        (lm15.TransportError("no route"), "scripted/lm: the server cannot be reached"),
        (lm15.RateLimitError("slow down"), ""),
        (lm15.ServerError("overloaded"), ""),
        (ValueError("odd"), ""),
    ],
)
def test_what_may_pass_makes_no_model_unusable_and_is_logged(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(prompt: Prompt) -> Reply:
        raise error

    caplog.set_level(logging.INFO, "rb_dspy")
    assert unusable(Backbones(agent=scripted_lm(script))).startswith(told)
    assert bool(unusable(Backbones(agent=scripted_lm(script)))) == bool(told)
    assert ("did not answer when it was asked for a word" in caplog.text) == (not told)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers with a status and nothing else, or, for 0, not in time."""
    free = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if request.param == 0:
                free.wait(10)
                return
            data = json.dumps({"error": {"message": "nope"}}).encode()
            self.send_response(request.param)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv(KEY, "none")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        free.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (401, f"the provider refused the key in {KEY}; "),
        (404, "the provider has no model 'large', or nothing is at this address: check its name, and api_base"),
        (0, "the server did not answer in time: check that it runs, or raise the role's timeout (seconds)"),
    ],
    indirect=["failing"],
)
def test_what_a_served_model_lacks_is_told_with_the_setting_that_mends_it(failing: str, said: str) -> None:
    config = BackboneConfig(model="openai/large", api_base=failing, api_key_env=KEY, timeout=0.5)
    (first, *_) = check({"agent": config})
    assert said in first.problem, first.problem
    assert "lm15" not in first.problem
    whole = unusable(Backbones(agent=config))
    assert said.partition("; ")[0].partition(" in ")[0] in whole
    assert "Timeouts(" not in first.problem


def _reply(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    said = {"role": "assistant", "content": None, **message}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "large"}
    return body | {"choices": [{"index": 0, "finish_reason": finish, "message": said}]}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The address of a server, the replies that it sends in turn (status and body, or what makes a body out of a
    request), and the requests that it got.
    """
    replies: list[Any] = []
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = replies[0](requests[-1]) if callable(replies[0]) else replies[0]
            data = json.dumps(body).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv(KEY, "none")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", replies, requests
        server.shutdown()
        thread.join()


def _thinking(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A model that thinks for 600 tokens before it answers."""
    cap = request.get("max_completion_tokens") or request.get("max_tokens")
    if cap is not None and cap < 600:
        return 200, _reply({"content": "", "reasoning_content": "hm " * cap}, "length")
    return 200, _reply({"content": "[[ ## answer ## ]]\nBlue.", "reasoning_content": "hm " * 600})


@pytest.mark.parametrize("own", [None, 8_000])
def test_a_model_that_thinks_first_is_given_its_own_tokens_or_enough(
    answering: tuple[str, list[Any], list[Any]], own: int | None
) -> None:
    base, replies, requests = answering
    replies.append(_thinking)
    config = BackboneConfig(model="openai/large", api_base=base, api_key_env=KEY, max_tokens=own)
    (first, *_) = check({"agent": config})
    assert (first.answer, first.problem) == ("Blue.", "")
    assert {request.get("max_completion_tokens", request.get("max_tokens")) for request in requests} == {own or 2_000}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (_thinking, "500 tokens went into thinking (finish reason length): raise the role's max_tokens"),
        ((200, _reply({"content": "Bl"}, "length")), "500 tokens did not hold the answer (finish reason length)"),
        ((200, _reply({"refusal": "I cannot\nhelp"})), "it refused to answer: I cannot help"),
        ((200, _reply({"content": ""}, "content_filter")), "the provider's content filter kept the answer back"),
        (
            (
                200,
                _reply({"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
            ),
            "it called a tool (f) that nobody gave it, instead of answering",
        ),
        ((200, {**_reply({}), "choices": []}), "the server sent nothing that could be an answer (no choices)"),
        ((200, _reply({"content": ""})), "it gave an answer without text (finish reason stop)"),
        ((200, _reply({"content": "", "reasoning_content": "hm"})), "it gave thinking only (finish reason stop)"),
    ],
    ids=["thinking", "cut", "refusal", "filter", "tools", "no choices", "empty", "thought"],
)
@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("provider", ["openai", "deepinfra"])  # the second is asked through litellm
def test_what_came_instead_of_an_answer_is_told(
    answering: tuple[str, list[Any], list[Any]], reply: Any, problem: str, provider: str
) -> None:
    base, replies, _ = answering
    replies.append(reply)
    config = BackboneConfig(model=f"{provider}/large", api_base=base, api_key_env=KEY, max_tokens=500)
    with dspy.context(disable_history=True):
        (first, *_) = check({"agent": config})
    assert first.answer == ""
    assert first.problem.startswith(problem)
    assert "\n" not in first.problem


def test_an_address_that_sends_one_elsewhere_gives_no_answer(answering: tuple[str, list[Any], list[Any]]) -> None:
    base, replies, _ = answering
    replies.append((302, {}))
    (first, *_) = check({"agent": BackboneConfig(model="openai/large", api_base=base, api_key_env=KEY)})
    assert first.problem.startswith(
        "the server sent nothing that could be an answer (no choices): check that api_base is the address of a model's"
    )
