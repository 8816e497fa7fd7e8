"""What is kept of language models: names and how they sample, and nothing that must not be seen."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import Backbones, MemoryBank, ReasoningBank
from rb_dspy.config import ROLES, BackboneConfig
from rb_dspy.errors import ConfigError, InputError
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from rb_dspy.tracking.rebuilt import made_backbones, saved_backbones
from tests.tracking.made import questions
from tests.worlds import answers, lock


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


def test_a_role_that_falls_back_does_so_again_and_samples_as_its_step_says() -> None:
    """An LM's own temperature counts in the roles that it was given for, and in no other."""
    seen: dict[str, Any] = {}

    def watching(prompt: Prompt) -> Reply:
        seen[prompt.wants[-1]] = prompt.temperature
        return answers(prompt)

    def asked(backbones: Backbones) -> dict[str, Any]:
        seen.clear()
        with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
            ReasoningBank(backbones=backbones, environments=Lock.make)(task=lock("acme", 1), bank=bank)
        return dict(seen)

    lm = scripted_lm(watching, model="some/warm", temperature=0.7)
    saved = json.loads(json.dumps(saved_backbones(Backbones(agent=lm))))
    assert saved == {"agent": {"model": "some/warm", "temperature": 0.7}}
    loaded = asked(Backbones(**dict.fromkeys(saved, lm)))
    assert loaded == asked(Backbones(agent=lm))
    assert (loaded["action"], loaded["label"]) == (0.7, 0)


def test_backbones_without_an_agent_are_kept_without_one() -> None:
    saved = saved_backbones(Backbones(judge=BackboneConfig(model="openai/m", temperature=0.2)))
    assert saved == {"judge": {"model": "openai/m", "temperature": 0.2}}
    again = made_backbones(saved)
    assert [role for role in ROLES if again.names(role)] == ["judge"]


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
        with pytest.raises(
            ConfigError, match=r"^openai/m was registered as the agent at an address of its own .*, which"
        ):
            made_backbones(saved)


def test_sampling_that_no_backbone_has_is_refused() -> None:
    lm = scripted_lm(questions, model="openai/hot", temperature=3.0)
    with pytest.raises(InputError, match=r"^openai/hot: temperature: .*less than or equal to 2; change it"):
        saved_backbones(Backbones(agent=lm))
