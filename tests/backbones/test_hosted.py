"""What a hosted model is sent."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import BackboneConfig, Backbones, MemoryBank, ReasoningBank, load_settings
from rb_dspy.compile.identity import who
from rb_dspy.errors import ConfigError
from rb_dspy.testing import Lock
from rb_dspy.tracking.described import described
from rb_dspy.tracking.hidden import Hidden
from rb_dspy.tracking.rebuilt import made_backbones, saved_backbones
from tests.backbones.served import KEY, Server
from tests.worlds import lock


@pytest.mark.usefixtures("swept")
def test_options_are_part_of_every_request(bank: MemoryBank, server: Server) -> None:
    settings = load_settings(
        None,
        [
            "backbones.agent.model=openai/large",
            f"backbones.agent.api_base={server.address}",
            f"backbones.agent.api_key_env={KEY}",
            "backbones.agent.options.extra_body.chat_template_kwargs.enable_thinking=false",
            "backbones.agent.options.top_p=0.5",
            "backbones.agent.options.reasoning_effort=low",
            'backbones.agent.options.extra_headers={"X-Title" = "rb"}',
        ],
    )
    bones = Backbones.from_settings(settings.backbones)
    done = ReasoningBank(backbones=bones, environments=Lock.make)(task=lock("acme", 4711), bank=bank)
    assert done.answer == "4711"
    for _, body, headers in server.sent:
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert (body["top_p"], body["reasoning_effort"], headers["x-title"]) == (0.5, "low", "rb")
    assert {body["temperature"] for _, body, _ in server.sent} == {0.7, 0.0, 1.0}


async def test_what_is_omitted_is_never_sent(bank: MemoryBank, server: Server) -> None:
    bones = Backbones(agent=server.config(omit=("temperature", "max_tokens")))
    program = ReasoningBank(backbones=bones, environments=Lock.make)
    assert program(task=lock("acme", 4711), bank=bank).answer == "4711"
    assert (await program.acall(task=lock("acme", 4712), bank=bank)).answer == "4711"
    assert len(server.sent) == 6
    assert all({*body} <= {"model", "messages", "stream"} for _, body, _ in server.sent)
    with pytest.raises(ConfigError, match="temperature is set, and omit leaves it out; remove one of them"):
        server.config(omit=("temperature",), temperature=0.5)


@pytest.mark.usefixtures("swept")
def test_a_server_of_plain_texts_can_be_named(bank: MemoryBank, server: Server) -> None:
    bones = Backbones(agent=server.config(options={"model_type": "text"}))
    ReasoningBank(backbones=bones, environments=Lock.make)(task=lock("acme", 4711), bank=bank)
    assert {path for path, _, _ in server.sent} == {"/v1/completions"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"api_key": "hunter2"}, "'api_key' belongs in the key api_key_env of the backbone"),
        ({"api_base": "http://x"}, "'api_base' belongs in the key api_base of the backbone"),
        ({"temperature": 0.5}, "'temperature' belongs in the key temperature of the backbone"),
        ({"num_retries": 5}, "'num_retries' cannot be set here; expected what a request takes, as top_p"),
        ({"extra_headers": {"Authorization": "hunter2"}}, "'extra_headers.Authorization' looks like a secret; keys"),
        ({"extra_headers": {"x-api-key": "hunter2"}}, "'extra_headers.x-api-key' looks like a secret"),
        ({"extra_headers": {"x": "Bearer hunter2"}}, "'extra_headers.x' looks like a secret"),
        ({"extra_body": {"proxies": ["https://me:hunter2@host/"]}}, "'extra_body.proxies.0' looks like a secret"),
        ({"extra_query": {"subscription-key": "hunter2"}}, "'extra_query.subscription-key' looks like a secret"),
        ({"extra_body": {"accessToken": "hunter2"}}, "'extra_body.accessToken' looks like a secret"),
        ({"extra_body": {"sig": "hunter2"}}, "'extra_body.sig' looks like a secret"),
        ({"extra_body": {"x": "eyJhbGciOiJIUzI1NiJ9.hunter2"}}, "'extra_body.x' looks like a secret"),
        ({"azure_ad_token": "hunter2"}, "'azure_ad_token' looks like a secret"),
        ({"aws_secret_access_key": "hunter2"}, "'aws_secret_access_key' looks like a secret"),
        ({"model_type": "hunter2"}, "model_type: expected one of chat, text, responses"),
        ({"extra_body": {"of": {"hunter2"}}}, "'extra_body.of' is a set; expected texts, numbers, true or false"),
    ],
)
def test_options_that_are_secrets_or_have_a_key_of_their_own_are_refused_unshown(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BackboneConfig(model="openai/x", options=options)
    assert str(caught.value).startswith(f"BackboneConfig: options: {told}")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_only_sound_like_secrets_are_taken() -> None:
    options = {"stop_token_ids": [1], "skip_special_tokens": False, "prompt_cache_retention": "24h", "top_k": 5}
    assert BackboneConfig(model="openai/x", options=options).options == options


def test_only_hosted_models_have_them() -> None:
    for given in ({"options": {"top_p": 0.5}}, {"omit": ("temperature",)}):
        config = BackboneConfig(model="local/qwen2.5-coder-1.5b", **given)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"runs in this process; {next(iter(given))} is for hosted models"):
            Backbones(agent=config)


def test_they_are_part_of_what_a_model_is_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "none")
    options = {"top_p": 0.5, "extra_body": {"top_k": 5}, "extra_headers": {"x-where": "canary"}}
    plain = BackboneConfig(model="openai/x", api_key_env=KEY)
    thinking = BackboneConfig(model="openai/x", api_key_env=KEY, options=options)
    cold = BackboneConfig(model="openai/x", api_key_env=KEY, omit=("temperature",))
    known = [json.dumps(who(Backbones(agent=each))) for each in (plain, thinking, cold)]
    assert len(set(known)) == 3
    assert "canary" not in "".join(known)
    bones = Backbones(agent=plain, judge=thinking, distiller=cold)
    assert len({id(bones.lm(role)) for role in ("agent", "judge", "distiller")}) == 3
    told = described(ReasoningBank(backbones=bones))
    assert (told["lm.judge.top_p"], told["lm.judge.extra_body.top_k"]) == (0.5, 5)
    assert told["lm.distiller.omit"] == ["temperature"]
    assert "canary" not in str(told)
    for given in (bones, {"agent": plain, "judge": thinking, "distiller": cold}):
        saved = json.loads(json.dumps(saved_backbones(given)))
        assert saved["judge"] == {"model": "openai/x", "options": {"top_p": 0.5, "extra_body": {"top_k": 5}}}
        assert saved["distiller"] == {"model": "openai/x", "omit": ["temperature"]}
        again = made_backbones(saved)
        assert again.lm("judge").kwargs["extra_body"] == {"top_k": 5}
        assert again.lm("agent").kwargs.get("top_p") is None
    assert Hidden([thinking])("at canary") == Hidden([bones.lm("judge")])("at canary") == "at [hidden]"


def test_a_described_model_that_is_pinned_is_saved_as_anybody_may_load_it() -> None:
    lm = Backbones(agent=BackboneConfig(model="openai/x", options={"top_p": 0.5})).lm("agent")
    again = dspy.BaseLM.load_state(lm.dump_state())
    assert type(again) is dspy.LM
    assert again.kwargs["top_p"] == 0.5
