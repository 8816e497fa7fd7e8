"""Which language model plays which role, and what a call of it reports."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import signatures
from rb_dspy.backbones import Backbones, call, metered
from rb_dspy.config import BackboneConfig
from rb_dspy.errors import BackboneError, ConfigError, ContextOverflow, InfrastructureError, UnparseableOutput
from rb_dspy.testing import Prompt, Reply, scripted_lm

JUDGE: dict[str, Any] = {"task": "t", "trajectory": "t", "final_state": "f"}


def label(prompt: Prompt) -> Reply:
    return {"reasons": "r", "label": "success"}


def named(name: str, script: Any = label, **kwargs: Any) -> Any:
    return scripted_lm(script, model=f"scripted/{name}", **kwargs)


def judge(**kwargs: Any) -> dspy.Prediction:
    return call(dspy.Predict(signatures.Judge), "judge", temperature=0.0, max_tokens=50, **JUDGE, **kwargs)


def test_a_role_without_an_lm_uses_the_agents_and_without_one_the_configured() -> None:
    agent, own, configured = named("agent"), named("judge"), named("configured")
    assert Backbones(agent=agent, judge=own).lm("judge") is own
    assert Backbones(agent=agent).lm("contraster") is agent
    with dspy.context(lm=configured):
        assert Backbones(judge=own).lm("agent") is configured
        assert Backbones(agent=agent).lm("agent") is agent
    with pytest.raises(BackboneError):
        Backbones().lm("agent")


def test_the_predictors_own_lm_is_stronger_than_the_roles() -> None:
    role, own = named("role"), named("own")
    predict = dspy.Predict(signatures.Judge)
    predict.set_lm(own)
    with Backbones(judge=role).use():
        call(predict, "judge", temperature=0.0, max_tokens=50, **JUDGE)
    assert (len(role.engine.prompts), len(own.engine.prompts)) == (0, 1)


def test_backbones_are_replaced_not_changed_and_never_saved() -> None:
    agent, other = named("agent"), named("other")
    backbones = Backbones(agent=agent)
    assert dict(backbones.replace(judge=other).own) == {"agent": agent, "judge": other}
    assert dict(backbones.own) == {"agent": agent}
    assert backbones.lm("judge") is agent
    assert copy.deepcopy(backbones) is backbones
    with pytest.raises(ConfigError):
        backbones.judge = other  # type: ignore[attr-defined]
    with pytest.raises(BackboneError):
        pickle.dumps(backbones)
    with pytest.raises(ConfigError):
        Backbones.of({"referee": agent})
    with pytest.raises(ConfigError):
        backbones.replace(referee=agent)
    with pytest.raises(ConfigError):
        Backbones(agent=3)


def test_equal_descriptions_share_one_lm_and_settings_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k-123")
    own = {"api_base": "http://127.0.0.1:9/v1", "max_tokens": 7, "timeout": 5.0, "temperature": 0.5}
    config = BackboneConfig(model="openai/x", api_key_env="MY_KEY", options={"top_p": 0.5}, num_retries=2, **own)
    backbones = Backbones(agent=config, judge=config)
    lm = backbones.lm("agent")
    assert lm is backbones.lm("judge")
    assert {**own, "top_p": 0.5}.items() <= lm.kwargs.items()
    assert (lm.num_retries, lm.cache) == (2, False)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(BackboneError, match="MY_KEY"):
        Backbones(agent=config)


@pytest.mark.parametrize(("own", "sent"), [({}, 0.25), ({"temperature": 0.9}, 0.9), ({"temperature": 0.0}, 0.0)])
def test_the_lms_own_temperature_takes_precedence(own: dict[str, float], sent: float) -> None:
    lm = named("a", **own)
    with Backbones(agent=lm).use():
        call(dspy.Predict(signatures.Judge), "judge", temperature=0.25, max_tokens=50, **JUDGE)
    assert lm.engine.prompts[0].temperature == sent


def test_rollouts_have_a_sample_and_a_seed_of_their_own() -> None:
    lm = named("a", cache=True, temperature=1.0)
    with Backbones(agent=lm).use(), metered() as ledger:
        for rollout in (0, 1, 2, 1, 0):
            judge(rollout=rollout)
    assert len(lm.engine.prompts) == 3
    assert (ledger.usage()["judge"].calls, ledger.usage()["judge"].cached_calls) == (5, 2)


def test_usage_is_counted_by_role_in_every_open_ledger() -> None:
    lm = named("a")
    with Backbones(agent=lm).use(), metered() as outer:
        judge()
        with metered() as inner:
            judge()
    assert (outer.usage()["judge"].calls, inner.usage()["judge"].calls) == (2, 1)
    assert outer.usage()["judge"].prompt_tokens == 2 * inner.usage()["judge"].prompt_tokens > 0
    assert set(outer.usage()) == {"judge"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lm15.AuthError("bad key"), BackboneError),
        (lm15.UnsupportedModelError("no such model"), BackboneError),
        (lm15.NotConfiguredError("no key"), BackboneError),
        (lm15.ContextLengthError("too long"), ContextOverflow),
        (lm15.InvalidRequestError("This model's maximum context length is 4096 tokens"), ContextOverflow),
        (lm15.RateLimitError("slow down"), InfrastructureError),
        (lm15.ServerError("500"), InfrastructureError),
        (lm15.InvalidRequestError("bad parameter"), InfrastructureError),
    ],
)
def test_errors_of_a_language_model_become_three_of_ours(error: Exception, expected: type[Exception]) -> None:
    def script(prompt: Prompt) -> Reply:
        raise error

    with Backbones(agent=named("a", script)).use(), metered() as ledger, pytest.raises(expected) as caught:
        judge()
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    assert (ledger.usage()["judge"].calls, ledger.usage()["judge"].cached_calls) == (1, 0)


def test_a_refused_key_is_named_by_its_variable_without_advice_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.AuthError("Incorrect API key provided.", provider="openai")

    monkeypatch.setenv("MY_JUDGE_KEY", "sk-4711")
    described = Backbones(judge=BackboneConfig(model="openai/x", api_key_env="MY_JUDGE_KEY")).lm("judge")
    judging = named("a", script)
    judging.api_key_env = described.api_key_env
    for lm, words in (
        (judging, "refused the key in the environment variable MY_JUDGE_KEY"),
        (named("a", script), "OPENAI_API_KEY"),
    ):
        with Backbones(judge=lm).use(), pytest.raises(BackboneError, match=words) as caught:
            judge()
        assert str(caught.value).endswith("Incorrect API key provided.)")


def test_a_key_that_a_server_sends_back_is_not_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "plainlooking4711")

    def script(prompt: Prompt) -> Reply:
        raise lm15.ServerError("no answer to Bearer plainlooking4711 " + "." * 110 + " key plainlooking4711")

    with Backbones(agent=named("a", script)).use(), pytest.raises(InfrastructureError) as caught:
        judge()
    assert "no answer to" in str(caught.value)
    assert "plain" not in str(caught.value)


def test_an_answer_that_cannot_be_parsed_is_asked_for_once_more_in_json() -> None:
    lm = named("a", lambda prompt: "neither fields nor JSON")
    with Backbones(agent=lm).use(), pytest.raises(UnparseableOutput):
        judge()
    assert len(lm.engine.prompts) == 2


def test_retries_are_dspys_own() -> None:
    calls = []

    def script(prompt: Prompt) -> Reply:
        calls.append(prompt)
        if len(calls) == 1:
            raise lm15.ServerError("500", retry_after=0.0)
        return label(prompt)

    with Backbones(agent=named("a", script, num_retries=1)).use():
        assert judge().label == "success"
    assert len(calls) == 2
