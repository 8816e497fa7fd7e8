"""What is kept of language models: names and how they sample, and nothing that must not be seen."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import Backbones
from rb_dspy.config import ROLES, BackboneConfig
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.testing import scripted_lm
from rb_dspy.tracking.rebuilt import made_backbones, saved_backbones
from tests.tracking.made import questions


def sampling(backbones: Backbones, role: str) -> tuple[Any, Any]:
    settings = backbones.lm(role).kwargs
    return settings.get("temperature"), settings.get("max_tokens", settings.get("max_completion_tokens"))


def test_backbones_sample_as_before() -> None:
    backbones = Backbones(
        agent=BackboneConfig(model="openai/m", temperature=0.0, max_tokens=300),
        judge="openai/plain",
        distiller=dspy.LM("openai/gpt-5", temperature=1.0, max_tokens=20_000),
    )
    again = made_backbones(json.loads(json.dumps(saved_backbones(backbones))))
    assert sampling(again, "agent") == (0.0, 300)
    assert sampling(again, "judge") == sampling(backbones, "judge") == (None, None)
    assert sampling(again, "distiller") == (1.0, 20_000)
    assert sampling(again, "contraster") == (0.0, 300)
    assert {role: lm.model for role, lm in again.lms().items()} == {
        role: lm.model for role, lm in backbones.lms().items()
    }
    assert again.lm("judge") is not again.lm("agent") is again.lm("selector")


def test_options_are_kept_without_what_may_be_a_secret() -> None:
    kept = {"top_p": 0.9, "extra_body": {"top_k": 20}}
    hidden = {"extra_headers": {"X": "canary"}, "aws_access_key_id": "canary", "user": "http://canary:1"}
    plain = dspy.LM("openai/m", api_key="canary", **kept, **hidden)
    plain.kwargs["extra_body"] = {"top_k": 20, "api_key": "canary"}
    backbones = Backbones(
        agent=plain,
        judge=BackboneConfig(model="openai/n", temperature="none", options={"reasoning_effort": "low"}),
        distiller=BackboneConfig(model="openai/r", options={"model_type": "responses"}),
    )
    saved = json.loads(json.dumps(saved_backbones(backbones)))
    assert "canary" not in json.dumps(saved)
    assert saved["agent"]["options"] == kept
    assert saved["judge"] == {"model": "openai/n", "temperature": "none", "options": {"reasoning_effort": "low"}}
    again = made_backbones(saved)
    assert (again.lm("judge").omit_temperature, again.lm("distiller").model_type) == (True, "responses")


def test_backbones_without_an_agent_are_kept_without_one() -> None:
    saved = saved_backbones(Backbones(judge=BackboneConfig(model="openai/m", temperature=0.2)))
    assert saved == {"judge": {"model": "openai/m", "temperature": 0.2}}
    again = made_backbones(saved)
    assert [role for role in ROLES if again.has(role)] == ["judge"]


def test_what_was_kept_of_every_role_before_is_still_loaded() -> None:
    every = {role: {"model": "openai/m", "temperature": 0.7} for role in ROLES}
    assert sampling(made_backbones(every), "judge") == (0.7, None)


def test_keys_and_addresses_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "canary-key")
    config = BackboneConfig(model="openai/m", temperature=0.3, api_base="http://canary:1/v1", api_key_env="MY_KEY")
    for given in (Backbones(agent=config), {"agent": config}, {"agent": Backbones(agent=config).lm("agent")}):
        saved = saved_backbones(given)
        assert "canary" not in json.dumps(saved)
        assert "MY_KEY" not in json.dumps(saved)
        assert isinstance(saved, dict)
        assert saved["agent"] == {"model": "openai/m", "temperature": 0.3, "elsewhere": True}
        with pytest.raises(ConfigError, match="api_base"):
            made_backbones(saved)


def test_sampling_that_no_backbone_has_is_refused() -> None:
    lm = scripted_lm(questions, model="openai/hot", temperature=3.0)
    with pytest.raises(InputError, match="temperature"):
        saved_backbones(Backbones(agent=lm))
