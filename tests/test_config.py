"""rb.toml: typed, and clear about what is wrong."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pydantic
import pytest

from rb_dspy import toml
from rb_dspy.config import (
    DEFAULT_MODEL,
    BackboneConfig,
    MattsConfig,
    ProgramConfig,
    RetrieveConfig,
    RunConfig,
    Settings,
    load_settings,
)
from rb_dspy.errors import ConfigError


def test_defaults_are_the_papers() -> None:
    program = load_settings().program
    assert (program.retrieve.k, program.retrieve.unit, program.retrieve.min_score) == (1, "experience", None)
    assert (program.act.temperature, program.judge.temperature, program.distill.temperature) == (0.7, 0.0, 1.0)
    assert (program.act.max_steps, program.distill.max_items) == (30, 3)
    matts = toml.parse(Settings, {"matts": {}}, "settings").matts
    assert matts is not None
    assert (matts.mode, matts.contrast.labels, matts.contrast.max_items) == ("parallel", False, 5)
    assert (matts.select.verdicts, matts.select.orders, matts.refine.until_confirmed) == (False, 1, False)
    assert not matts.adaptive.enabled


def test_scaling_is_off_until_it_is_asked_for(tmp_path: Path) -> None:
    assert load_settings().matts is None
    asked = load_settings(None, ["matts.k=4"]).matts
    assert asked is not None
    assert (asked.mode, asked.k) == ("parallel", 4)
    file = tmp_path / "rb.toml"
    file.write_text('[matts]\nmode = "sequential"\n[matts.refine]\nuntil_confirmed = true\n')
    found = load_settings(file, ["matts.k=5"]).matts
    assert found is not None
    assert (found.mode, found.k, found.refine.until_confirmed) == ("sequential", 5, True)


def test_a_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "rb.toml"
    file.write_text('[run]\ntasks = 3\n[backbones.agent]\nmodel = "openai/gpt-4o-mini"\n')
    found = load_settings(file, ["run.seed=7", "backbones.judge.model=local/qwen2.5-coder-0.5b", "run.tasks=4"])
    assert (found.run.tasks, found.run.seed) == (4, 7)
    assert found.backbones["agent"] == BackboneConfig(model="openai/gpt-4o-mini")
    assert found.backbones["judge"].model == "local/qwen2.5-coder-0.5b"


def test_the_default_agent_stays_where_its_model_is_not_given(tmp_path: Path) -> None:
    agent, judge = BackboneConfig(model=DEFAULT_MODEL), BackboneConfig(model="openai/gpt-4o-mini")
    assert load_settings().backbones == {"agent": agent}
    both = {"agent": agent, "judge": judge}
    assert load_settings(None, ["backbones.judge.model=openai/gpt-4o-mini"]).backbones == both
    assert Settings(backbones={"judge": judge}).backbones == both
    file = tmp_path / "rb.toml"
    file.write_text('[backbones.judge]\nmodel = "openai/gpt-4o-mini"\n')
    assert load_settings(file).backbones == both
    fewer = agent.model_copy(update={"threads": 2})
    assert load_settings(file, ["backbones.agent.threads=2"]).backbones == {"agent": fewer, "judge": judge}
    for empty in ({"backbones": {}}, {"backbones": {"agent": {}}}):
        assert toml.parse(Settings, empty, "settings").backbones == {"agent": agent}


def test_an_agent_that_is_given_whole_is_what_was_given() -> None:
    whole = {"model": "openai/gpt-4o-mini", "timeout": 9.0}
    for agent in (whole, BackboneConfig.model_validate(whole)):
        found = Settings.model_validate({"backbones": {"agent": agent}})
        assert found.model_dump(exclude_unset=True) == {"backbones": {"agent": whole}}
    assert load_settings().model_fields_set == set()
    with pytest.raises(ConfigError, match=r"backbones\.judge\.model is missing"):
        toml.parse(Settings, {"backbones": {"judge": {"threads": 2}}}, "settings")
    with pytest.raises(ConfigError, match=r"backbones\.agent = 'openai/x'"):
        toml.parse(Settings, {"backbones": {"agent": "openai/x"}}, "settings")


def test_a_mistake_is_blamed_on_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "rb.toml"
    file.write_text("[run]\ntasks = 3\n[backbones.judge]\nthreads = 2\n")
    with pytest.raises(ConfigError, match=r"^--set: run.tasks = 0"):
        load_settings(str(file), ["backbones.judge.model=openai/x", "run.tasks=0"])
    assert load_settings(str(file), ["backbones.judge.model=openai/x"]).run.tasks == 3
    with pytest.raises(ConfigError, match=r"^--set: unknown key 'foo'"):
        load_settings(file, ["backbones.judge.model=openai/x", "foo=1"])
    with pytest.raises(ConfigError, match=r"rb.toml: backbones.judge.model is missing"):
        load_settings(file, ["run.tasks=2"])


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000, "{a=" * 5000], ids=["digits", "brackets", "tables"])
def test_more_than_python_reads_is_refused_in_one_line_that_names_its_source(tmp_path: Path, value: str) -> None:
    file = tmp_path / "rb.toml"
    file.write_text("[run]\ntasks = 3\n")
    with pytest.raises(ConfigError, match=r"^--set run\.tasks: TOML that cannot be read") as caught:
        load_settings(file, [f"run.tasks={value}"])
    assert len(str(caught.value)) < 200
    file.write_text(f"[run]\ntasks = {value}\n")
    with pytest.raises(ConfigError, match=r"rb\.toml: TOML that cannot be read") as caught:
        load_settings(file, ["run.tasks=3"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override", [f"run.stream=0x{'f' * 5000}", f"run.stream{'.a' * 5000}=1"], ids=["number", "tables"]
)
def test_a_value_that_cannot_be_shown_is_refused_in_one_line(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: run\.stream = a .* too large to be shown: input") as caught:
        load_settings(None, [override])
    assert len(str(caught.value)) < 200


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
        ({"mats": {}}, "unknown key 'mats'; did you mean 'matts'"),
        ({"matts": {"kk": 3}}, "unknown key 'matts.kk'; did you mean 'k'"),
        ({"matts": {"contrast": {"label": True}}}, "unknown key 'matts.contrast.label'; did you mean 'labels'"),
        (
            {"matts": {"mode": "chess"}},
            "matts.mode = 'chess': input should be 'parallel', 'sequential', 'best_of_n' or",
        ),
        ({"matts": {"k": 0}}, "matts.k = 0"),
        ({"matts": {"adaptive": {"first": 1}}}, "matts.adaptive.first = 1"),
        ({"backbones": {"selektor": {"model": "x"}}}, "unknown key 'backbones.selektor'; did you mean 'selector'"),
    ],
)
def test_mistakes_are_named_in_one_line(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toml.parse(Settings, data, "settings")
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


def test_settings_that_can_never_work_together_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="min_score is a cosine, and mode 'lexical' ranks by something else"):
        load_settings(None, ["program.retrieve.mode=lexical", "program.retrieve.min_score=0.5"])


def test_every_field_says_what_it_means_in_schemas_and_in_help() -> None:
    schema = Settings.model_json_schema()
    tables = [schema, *schema["$defs"].values()]
    assert len(tables) > 10
    assert not [
        (table["title"], name)
        for table in tables
        for name, field in table["properties"].items()
        if not field.get("description")
    ]
    told = inspect.getdoc(ProgramConfig.model_fields["act"].annotation) or ""
    assert "max_steps: Steps after which a rollout is ended." in told.splitlines()


def test_a_mode_is_written_as_in_python_or_as_on_the_command_line() -> None:
    for mode in ("best-of-n", "best_of_n"):
        found = load_settings(None, [f"matts.mode={mode}"]).matts
        assert found is not None
        assert found.mode == "best_of_n"
        assert MattsConfig.model_validate({"mode": mode}).mode == "best_of_n"


@pytest.mark.parametrize(
    ("config", "given", "told"),
    [
        (RetrieveConfig, {"kk": 3}, "RetrieveConfig: unknown key 'kk'; did you mean 'k'?"),
        (RetrieveConfig, {"k": -1}, "RetrieveConfig: k = -1: input should be greater than or equal to 0"),
        (BackboneConfig, {}, "BackboneConfig: model is missing"),
        (RunConfig, {"shelf": 1}, "RunConfig: unknown key 'shelf'; known here: stream, tasks, seed, templates, split"),
        (MattsConfig, {"adaptive": {"frist": 3}}, "MattsConfig: unknown key 'adaptive.frist'; did you mean 'first'?"),
        (Settings, {"run": {"tasks": 0}}, "Settings: run.tasks = 0: input should be greater than or equal to 1"),
        (RetrieveConfig, {"min_score": 0.5, "mode": "lexical"}, "RetrieveConfig: value error, min_score is a cosine"),
    ],
)
def test_a_config_that_is_made_in_python_is_refused_in_one_line(
    config: type[pydantic.BaseModel], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**given)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_a_table_within_settings_is_refused_by_where_it_stands() -> None:
    for path, value in ((("program", "retrieve", "kk"), 3), (("tracking", "uri"), "")):
        data: Any = value
        for key in reversed(path):
            data = {key: data}
        with pytest.raises(ConfigError, match=f"^settings: .*{'.'.join(path)}"):
            toml.parse(Settings, data, "settings")
    assert copy.deepcopy(RetrieveConfig(k=2)) == RetrieveConfig(k=2) == pickle.loads(pickle.dumps(RetrieveConfig(k=2)))


@pytest.mark.parametrize(
    "address", ["", " ", "ftp://u:hunter2@host/v1", "u:hunter2@127.0.0.1:8000/v1", "https://", "http:///v1"]
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent_elsewhere(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^BackboneConfig: api_base: expected an address, as http://127") as caught:
        BackboneConfig(model="openai/x", api_base=address)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--set: backbones\.agent\.api_base: expected an address") as caught:
        load_settings(None, ["backbones.agent.model=openai/x", f"backbones.agent.api_base={address}"])
    assert "\n" not in str(caught.value)
    assert ("what was given is empty" in str(caught.value)) == (address == "")


@pytest.mark.parametrize("key", ["", "sk-abcdef123", "AIza.x", "0badc0ffee", "gsk_0123456789abcdefGHIJ", "a" * 70])
def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^BackboneConfig: api_key_env: expected the name of an envir") as caught:
        BackboneConfig(model="openai/x", api_key_env=key)
    assert not key or key not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--set: backbones\.agent\.api_key_env: expected the name") as caught:
        load_settings(None, ["backbones.agent.model=openai/x", f"backbones.agent.api_key_env={key!r}"])
    assert not key or key not in str(caught.value)


def test_addresses_and_names_of_variables_are_taken_as_they_are() -> None:
    for address in ("http://127.0.0.1:8000/v1", "HTTPS://u:p@host.example/deep/v1/", "http://[::1]:8000"):
        assert BackboneConfig(model="openai/x", api_base=address).api_base == address
    for name in ("MY_KEY", "hf_token", "_k", "KEY2"):
        assert BackboneConfig(model="openai/x", api_key_env=name).api_key_env == name
