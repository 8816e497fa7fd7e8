"""rb.toml, environment variables and --set: what holds, and one line for what is wrong."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pydantic
import pytest

from rb_dspy.config import (
    DEFAULT_MODEL,
    BackboneConfig,
    MattsConfig,
    ProgramConfig,
    RetrieveConfig,
    RunConfig,
    Settings,
)
from rb_dspy.config_file import load_settings
from rb_dspy.errors import ConfigError


def test_the_papers_values() -> None:
    program, matts = ProgramConfig.paper(), MattsConfig.paper()
    retrieve = program.retrieve
    assert (retrieve.k, retrieve.unit, retrieve.mode, retrieve.min_score) == (1, "experience", "dense", -1)
    assert retrieve.min_share == 0
    assert (program.act.temperature, program.act.max_steps) == (0.7, 30)
    assert program.act.discuss
    assert retrieve.query_prefix
    judge, distill = program.judge, program.distill
    assert (judge.temperature, judge.strict, judge.thoughts, judge.states) == (0, False, False, 1)
    assert (distill.temperature, distill.max_items, distill.prompts, distill.observations) == (0.7, 3, "general", False)
    assert (matts.contrast.temperature, matts.contrast.labels, matts.contrast.max_items) == (0.7, False, 5)
    assert not matts.contrast.observations
    assert (matts.refine.temperature, matts.select.verdicts) == (0.7, False)


def test_the_values_of_april_2026_have_another_judge_and_distiller() -> None:
    program, paper = ProgramConfig.paper_2026_04(), ProgramConfig.paper()
    assert (program.retrieve, program.act) == (paper.retrieve, paper.act)
    judge, distill = program.judge, program.distill
    assert (judge.temperature, judge.strict, judge.thoughts, judge.states) == (0, True, True, 5)
    assert (distill.temperature, distill.max_items, distill.prompts) == (1.0, 3, "procedures")
    assert not distill.observations


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rb.toml"
    file.write_text("[run]\ntasks = 1\nseed = 1\nsplit = 'dev'\nmemory = 'none'\n[matts]\nmode = 'sequential'\n")
    monkeypatch.setenv("RB_DSPY_RUN__TASKS", "2")
    monkeypatch.setenv("RB_DSPY_RUN__SEED", "2")
    monkeypatch.setenv("RB_DSPY_RUN__SPLIT", "compile")
    monkeypatch.setenv("RB_DSPY_RUN__TEMPLATES", '["a", "b"]')
    monkeypatch.setenv("RB_DSPY_BACKBONES__JUDGE__MODEL", "openai/x")
    settings = load_settings(file, ["run.tasks=3", "run.seed=3", "matts.k=5"], {"run.tasks": ("--tasks", 4)})
    run = settings.run
    assert (run.tasks, run.seed, run.split, run.memory, run.templates) == (4, 3, "compile", "none", ("a", "b"))
    assert settings.matts == MattsConfig(mode="sequential", k=5)
    assert settings.backbones["judge"] == BackboneConfig(model="openai/x")
    assert Settings().run == RunConfig()  # what is made in Python reads no environment


def test_scaling_is_off_by_default() -> None:
    assert load_settings().matts is None
    assert load_settings(None, ["matts.mode=best-of-n"]).matts == MattsConfig(mode="best_of_n")


def test_the_agent_keeps_the_default_model_unless_another_is_named() -> None:
    judge = BackboneConfig(model="openai/x")
    assert Settings(backbones={"judge": judge}).backbones == {
        "agent": BackboneConfig(model=DEFAULT_MODEL),
        "judge": judge,
    }
    settings = load_settings(None, ["backbones.agent.threads=2"])
    assert settings.backbones == {"agent": BackboneConfig(model=DEFAULT_MODEL, threads=2)}


def test_a_temperature_is_a_number_or_none_at_all() -> None:
    assert load_settings(None, ["backbones.agent.temperature=none"]).backbones["agent"].temperature == "none"
    assert load_settings(None, ["backbones.agent.temperature=0.3"]).backbones["agent"].temperature == 0.3


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.tasks=0", ["--set", "run.tasks = 0"]),
        ("run.tasks=many", ["run.tasks = 'many'"]),
        ("run.taks=3", ["'run.taks'", "'run.tasks'"]),
        ("run=3", ["run"]),
        ("run.tasks.x=1", ["run.tasks"]),
        ("rn.tasks=3", ["'rn'", "'run'"]),
        ("matts.k=0", ["matts.k = 0"]),
        ("matts.contrast.label=true", ["'matts.contrast.label'", "'matts.contrast.labels'"]),
        ("backbones.agnt.model=x", ["'backbones.agnt'", "agent"]),
        ("backbones.judge.cache=true", ["backbones.judge.model", "missing"]),
        ("backbones.agent.temperature=3", ["backbones.agent.temperature = 3"]),
        ("run.tasks", ["run.tasks"]),
        ("=3", ["key=value"]),
        (f"run.stream=0x{'f' * 5000}", ["run.stream"]),
        (f"run.tasks={'1' * 5000}", ["run.tasks"]),
        (f"run.tasks={'[' * 5000}", ["run.tasks"]),
    ],
)
def test_a_mistake_is_one_short_line_that_names_the_key(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [override])
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert len(message) < 300


def test_a_mistake_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rb.toml"
    file.write_text("[run]\ntasks = 0\n")
    with pytest.raises(ConfigError, match=r"rb\.toml"):
        load_settings(file)
    with pytest.raises(ConfigError, match=r"^--tasks"):
        load_settings(file, [], {"run.tasks": ("--tasks", 0)})
    monkeypatch.setenv("RB_DSPY_RUN__TASKS", "x")
    with pytest.raises(ConfigError, match="RB_DSPY_RUN__TASKS"):
        load_settings(file)


@pytest.mark.parametrize("content", [None, b"[run\n", b"\xff\xfe", b"[run]\ntasks = " + b"1" * 5000])
def test_unusable_files(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "rb.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"rb\.toml"):
        load_settings(file)


def test_a_minimal_score_needs_cosines() -> None:
    with pytest.raises(ConfigError, match="min_score"):
        load_settings(None, ["program.retrieve.mode=lexical", "program.retrieve.min_score=0.5"])


@pytest.mark.parametrize(
    ("config", "values", "part"),
    [
        (RetrieveConfig, {"kk": 3}, "'kk'"),
        (RetrieveConfig, {"k": -1}, "k = -1"),
        (RetrieveConfig, {"min_score": 0.5, "mode": "hybrid"}, "min_score"),
        (RetrieveConfig, {"query_prefix": "Find: ", "mode": "lexical"}, "query_prefix"),
        (BackboneConfig, {}, "model"),
        (BackboneConfig, {"model": "x", "patience": 3}, "num_retries"),
        (Settings, {"run": {"tasks": 0}}, "run.tasks = 0"),
        (ProgramConfig, {"retrieve": {"k": -1}}, "retrieve.k = -1"),
    ],
)
def test_a_config_made_in_python_is_refused_alike(
    config: type[pydantic.BaseModel], values: dict[str, Any], part: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    assert str(caught.value).startswith(f"{config.__name__}: ")
    assert part in str(caught.value)


def test_configs_are_frozen_values() -> None:
    config = RetrieveConfig(k=2)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(pydantic.ValidationError):
        config.k = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "values",
    [
        {"api_key": "hunter2"},
        {"api_key_env": "sk-hunter2"},
        {"api_base": "ftp://u:hunter2@host/v1"},
        {"api_base": ""},
        {"options": {"api_key": "hunter2"}},
        {"options": {"extra_headers": {"Authorization": "Bearer hunter2"}}},
        {"options": {"extra_body": [{"X-API-Key": "hunter2"}]}},
        {"options": {"extra_headers": {"X-My-Token": "hunter2"}}},
        {"options": {"aws_secret_access_key": "hunter2"}},
        {"options": {"aws_session_token": "hunter2"}},
        {"options": {"azure_ad_token": "hunter2"}},
        {"options": {"vertex_credentials": "hunter2"}},
        {"options": {"temperature": 0.5}},
    ],
)
def test_secrets_and_misplaced_keys_are_refused_and_not_shown(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        BackboneConfig(model="openai/x", **values)
    assert "hunter2" not in str(caught.value)


def test_addresses_and_names_of_variables_are_accepted() -> None:
    for address in ("http://127.0.0.1:8000/v1", "HTTPS://host.example/deep/v1/", "http://[::1]:8000"):
        assert BackboneConfig(model="openai/x", api_base=address).api_base == address
    assert BackboneConfig(model="openai/x", api_key_env="MY_KEY").api_key_env == "MY_KEY"
    options: dict[str, Any] = {"top_p": 0.9, "max_completion_tokens": 9, "extra_headers": {"X-Title": "a"}}
    assert BackboneConfig(model="x", options=options).options == options


def test_every_field_says_what_it_means_in_schemas_and_in_help() -> None:
    schema = Settings.model_json_schema()
    tables = [schema, *schema["$defs"].values()]
    assert len(tables) > 10
    assert not [
        (table["title"], name)
        for table in tables
        for name, field in table.get("properties", {}).items()
        if not field.get("description")
    ]
    assert "max_steps: " in (inspect.getdoc(ProgramConfig.model_fields["act"].annotation) or "")
