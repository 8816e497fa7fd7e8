"""What is kept of language models: names and how they sample, and nothing that must not be seen."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import Backbones
from rb_dspy.config import BackboneConfig
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
    assert sampling(again, "contraster") == (1.0, 20_000)
    assert {role: lm.model for role, lm in again.roles().items()} == {
        role: lm.model for role, lm in backbones.roles().items()
    }
    assert again.lm("agent") is not again.lm("judge") is again.lm("selector")


def test_keys_and_addresses_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "canary-key")
    config = BackboneConfig(model="openai/m", temperature=0.3, api_base="http://canary:1/v1", api_key_env="MY_KEY")
    for given in (Backbones(agent=config), {"agent": config}, {"agent": Backbones(agent=config).lm("agent")}):
        saved = saved_backbones(given)
        assert "canary" not in json.dumps(saved)
        assert "MY_KEY" not in json.dumps(saved)
        assert isinstance(saved, dict)
        assert saved["agent"] == {"model": "openai/m", "temperature": 0.3, "elsewhere": True}
        with pytest.raises(
            ConfigError, match=r"^openai/m was registered as the agent at an address of its own .*, which"
        ):
            made_backbones(saved)


def test_sampling_that_no_backbone_has_is_refused() -> None:
    lm = scripted_lm(questions, model="openai/hot", temperature=3.0)
    with pytest.raises(InputError, match=r"^openai/hot: temperature: .*less than or equal to 2; change it"):
        saved_backbones(Backbones(agent=lm))
