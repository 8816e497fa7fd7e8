"""What must not be seen is taken out of errors, and little else."""

from __future__ import annotations

import pytest

from rb_dspy.config import BackboneConfig
from rb_dspy.tracking.hidden import Hidden


def test_keys_and_addresses_are_taken_out_of_texts() -> None:
    class LM:
        kwargs = {  # noqa: RUF012
            "api_key": "sk-abc",
            "api_base": "https://user:pw@host.example:81/deep/v1",
            "max_tokens": 1000,
            "model": "openai/x",
            "extra_headers": {"Authorization": "Bearer xyz"},
            "nothing": None,
        }

    hidden = Hidden([LM()])
    assert hidden("sk-abc at host.example:81 with Bearer xyz") == "[hidden] at [hidden] with [hidden]"
    assert hidden("GET /deep/v1/chat 1000 openai/x") == "GET /[hidden]/chat 1000 openai/x"
    assert Hidden()("sk-abc") == "sk-abc"


def test_those_of_a_configuration_are_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "abc-def")
    hidden = Hidden([BackboneConfig(model="openai/x", api_base="http://far.example/v1", api_key_env="MY_KEY"), None])
    assert hidden("far.example refused abc-def") == "[hidden] refused [hidden]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("failed to connect to 127.0.0.1:9", "failed to connect to [hidden]"),
        ("connect to localhost:11434 failed", "connect to [hidden] failed"),
        ("Cannot connect to host ollama:11434 ssl:default", "Cannot connect to host [hidden] ssl:default"),
        ("no route to api.far.example:443.", "no route to [hidden]."),
        ("POST 'https://u:p@far.example/v1?key=1': 401", "POST '[hidden]': 401"),
        ("Pool(host='far.example', port=80)", "Pool(host=[hidden], port=80)"),
        ("at [::1]:8080, [fe80::1]", "at [hidden], [hidden]"),
        ("Incorrect API key provided: abc***xyz.", "Incorrect API key provided: [hidden]"),
        ("sk-proj-0123456789 and Bearer abcdef", "[hidden] and Bearer [hidden]"),
    ],
)
def test_what_looks_like_one_is_hidden_whosever_it_is(text: str, shown: str) -> None:
    assert Hidden()(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "BackboneError: openai/gpt-4o-mini: rate limit, status 429; wait 12:30",
        "task lock/acme/0: judge.predict: label: expected 'success' or 'failure', got [1, 2]",
        'File "rb_dspy/steps/ask.py", line 12: held-out: 3 of 4; answers.jsonl:17: damaged; dspy 3.4.1',
        "ask.py:120: sk-1, api_key_env is not set, at step:3 [12:30]",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert Hidden()(text) == text
