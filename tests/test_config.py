"""rb.toml: typed, and clear about what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from rb_dspy.config import BackboneConfig, load_settings, parse_settings
from rb_dspy.errors import ConfigError


def test_defaults_are_the_papers() -> None:
    program = load_settings().program
    assert (program.retrieve.k, program.retrieve.unit, program.retrieve.min_score) == (1, "experience", None)
    assert (program.act.temperature, program.judge.temperature, program.distill.temperature) == (0.7, 0.0, 1.0)
    assert (program.act.max_steps, program.distill.max_items) == (30, 3)


def test_a_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "rb.toml"
    file.write_text('[run]\ntasks = 3\n[backbones.agent]\nmodel = "openai/gpt-4o-mini"\n')
    found = load_settings(file, ["run.seed=7", "backbones.judge.model=local/qwen2.5-coder-0.5b", "run.tasks=4"])
    assert (found.run.tasks, found.run.seed) == (4, 7)
    assert found.backbones["agent"] == BackboneConfig(model="openai/gpt-4o-mini")
    assert found.backbones["judge"].model == "local/qwen2.5-coder-0.5b"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"rn": {}}, "unknown key 'rn'; did you mean 'run'"),
        ({"run": {"taks": 3}}, "unknown key 'run.taks'; did you mean 'tasks'"),
        ({"backbones": {"agnt": {"model": "x"}}}, "unknown key 'backbones.agnt'; did you mean 'agent'"),
        ({"backbones": {"agent": {"model": "x", "api_key": "s"}}}, "unknown key 'backbones.agent.api_key'"),
        ({"program": {"act": {"max_step": 3}}}, "unknown key 'program.act.max_step'; did you mean 'max_steps'"),
        ({"program": {"act": {"zzz": 3}}}, "known here: temperature, max_steps, max_tokens"),
        ({"run": {"tasks": "many"}}, "run.tasks = 'many'"),
        ({"run": {"tasks": 0}}, "run.tasks = 0"),
    ],
)
def test_mistakes_are_named_in_one_line(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file"), (b"[run\n", "not valid TOML"), (b"\xff\xfe", "not valid TOML")]
)
def test_unusable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "rb.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_settings(file)


@pytest.mark.parametrize("override", ["run.tasks", "=3", "run.tasks.x=1"])
def test_bad_overrides(override: str) -> None:
    with pytest.raises(ConfigError):
        load_settings(None, ["run.tasks=1", override])
