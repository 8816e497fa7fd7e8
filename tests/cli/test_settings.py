"""Where settings come from: short forms, the user's own file, and addresses that only a folder's file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rb_dspy.cli.program import reflection_model
from rb_dspy.config import ROLES, Settings
from rb_dspy.config_file import load_settings
from rb_dspy.errors import BackboneError, ConfigError
from tests.served import Served, lines

AWAY = "https://models.example/v1"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's own file, which does not exist yet."""
    return tmp_path / "own.toml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rb.toml"


@pytest.mark.parametrize(
    "text", ['agent = "openai/x"', '[backbones]\nagent = "openai/x"', '[backbones.agent]\nmodel = "openai/x"']
)
def test_a_model_may_stand_for_its_table(folder: Path, text: str) -> None:
    folder.write_text(text)
    assert load_settings(folder).backbones["agent"].model == "openai/x"
    settings = load_settings(folder, ["backbones.agent.temperature=0.3", "judge=openai/y"])
    assert (settings.backbones["agent"].model, settings.backbones["agent"].temperature) == ("openai/x", 0.3)
    assert settings.backbones["judge"].model == "openai/y"
    assert Settings(backbones={"agent": "openai/x"}) == load_settings(folder)


def test_a_model_may_stand_for_its_table_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RB_DSPY_BACKBONES__JUDGE__MODEL", "openai/y")
    assert load_settings().backbones["judge"].model == "openai/y"


def test_the_folders_file_wins_over_the_users_own(own: Path, folder: Path) -> None:
    own.write_text('agent = "openai/mine"\n[run]\ntasks = 3\nseed = 4\n[matts]\n')
    folder.write_text('agent = "openai/theirs"\n[run]\ntasks = 5\n')
    settings = load_settings(folder, own=own)
    assert (settings.backbones["agent"].model, settings.run.tasks, settings.run.seed) == ("openai/theirs", 5, 4)
    assert settings.matts is not None
    own.write_text("[run]\ntaks = 3\n")
    with pytest.raises(ConfigError, match=str(own)):
        load_settings(folder, own=own)


@pytest.mark.parametrize(
    "text",
    [
        f'[backbones.agent]\nmodel = "openai/x"\napi_base = "{AWAY}"\napi_key_env = "AWS_SECRET_ACCESS_KEY"',
        f'[backbones.agent]\nmodel = "openai/x"\napi_base = "{AWAY}"',
        f'agent = "openai/x"\n[backbones.judge]\nmodel = "openai/y"\napi_base = "{AWAY}"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://api.openai.com/v1"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "https://api.openai.com.evil.example/v1"',
        '[backbones.agent]\nmodel = "groq/x"\napi_base = "https://api.openai.com/v1"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://127.0.0.1@evil.example/v1"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://localhost.evil.example/v1"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://127.0.0.1\\\\@evil.example/v1"',
        f'[backbones.agent]\nmodel = "openai/x"\n[backbones.agent.options]\nbase_url = "{AWAY}"',
        f'[backbones.agent]\nmodel = "openai/x"\n[backbones.agent.options]\nfallbacks = [{{ api_base = "{AWAY}" }}]',
        '[backbones.agent]\nmodel = "vertex_ai/x"\n[backbones.agent.options]\nvertex_location = "evil.example/"',
        f'agent = "oobabooga/{AWAY}"',
    ],
)
def test_an_address_that_only_the_folder_names_is_refused(own: Path, folder: Path, text: str) -> None:
    folder.write_text(text)
    with pytest.raises(ConfigError, match=r"rb\.toml: backbones\.(agent|judge)\.") as caught:
        load_settings(folder, own=own)
    assert "--set backbones." in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("backbones.agent.api_key_env", "AWS_SECRET_ACCESS_KEY"),
        ("tracking.uri", "https://evil.example"),
        ("tracking.uri", "databricks"),
        ("tracking.uri", "sqlite:////etc/passwd"),
        ("tracking.uri", "sqlite:///file:/etc/x?uri=true"),
        ("tracking.uri", "sqlite:///../up.db"),
        ("bank.url", "postgresql://me@evil.example/bank"),
        ("bank.url", "postgresql://me@localhost/bank?host=evil.example"),
        ("bank.url", "~/private.sqlite"),
        ("bank.url", "/etc/private.sqlite"),
        ("bank.url", "../private.sqlite"),
        ("bank.embedder", "evil/model"),
        ("run.stream", "/home/me/private.jsonl"),
        ("run.stream", "../private.jsonl"),
        ("trust.default", "owner"),
        ("trust.cap", 4),
        ("trust.near", 2),
        ("trust.origins.mail", "learned"),
        ("backbones.agent.options.extra_body.proxy.stop", "x"),
        *(
            (f"backbones.agent.options.{name}", value)
            for name, value in {
                "account_id": "attackeracct",
                "Base_URL": "x",
                "API_BASE": "x",
                "ssl_verify": False,
                "verify": False,
                "extra_headers.Host": "evil.example",
                "headers.X-Team": "a",
                "extra_query.a": "b",
                "extra_body.api_base": "x",
                "aws_region_name": "evil.example/",
                "vertex_location": "us-east1",
                "proxy": "x",
                "mock_response": "x",
                "invented_later": "x",
            }.items()
        ),
    ],
)
def test_what_a_file_may_not_set_needs_confirmation(own: Path, folder: Path, key: str, value: Any) -> None:
    """Only what is known to be harmless is taken from a file that may be another person's."""
    text = f"'{value}'" if isinstance(value, str) else str(value).lower()
    folder.write_text(f'backbones.agent.model = "openai/x"\n{key} = {text}\n')
    with pytest.raises(ConfigError) as caught:
        load_settings(folder, own=own)
    assert str(caught.value).startswith(f"{folder}: {key} needs your confirmation")
    assert f"--set {key}=VALUE" in str(caught.value)
    assert str(own) in str(caught.value)
    assert load_settings(folder, [f"{key}={text}"], own=own) == load_settings(folder)
    own.write_text(folder.read_text())
    assert load_settings(folder, own=own) == load_settings(folder)


@pytest.mark.parametrize(
    "text",
    [
        'agent = "openai/x"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://127.0.0.1:8000/v1"\ntimeout = 9\nthreads = 2',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://localhost:8000/v1"',
        '[backbones.agent]\nmodel = "openai/x"\napi_base = "http://[::1]:8000/v1"',
        '[backbones.agent]\nmodel = "openai/x"\n[backbones.agent.options]\nreasoning_effort = "low"\nstop = ["a://"]',
        '[backbones.agent]\nmodel = "openai/x"\noptions.extra_body.chat_template_kwargs.enable_thinking = false',
        'agent = "openai/x"\n[bank]\nurl = "banks/mine.sqlite"\nscope = "a"\nembedder = "minilm"',
        'agent = "openai/x"\n[trust]\ndefault = "held"\ncap = 1\norigins = { "env:*" = "held" }',
        'agent = "openai/x"\n[tracking]\nuri = "http://127.0.0.1:5000"\nexperiment = "a"\ntraces = false',
        'agent = "openai/x"\n[tracking]\nuri = "sqlite:///runs.db"\n[matts]\nk = 2\n[program.retrieve]\nk = 2\n[run]\n',
    ],
)
def test_what_any_file_may_set(own: Path, folder: Path, text: str) -> None:
    folder.write_text(text)
    assert load_settings(folder, own=own).backbones["agent"].model == "openai/x"


def test_a_part_that_is_used_alone_needs_no_confirmation_of_others(own: Path, folder: Path) -> None:
    folder.write_text(f'[backbones.agent]\nmodel = "openai/x"\napi_base = "{AWAY}"\n[bank]\nscope = "a"')
    assert load_settings(folder, own=own, parts=["bank"]).bank.scope == "a"
    folder.write_text('[bank]\nurl = "/etc/x.sqlite"')
    with pytest.raises(ConfigError, match=r"bank\.url needs your confirmation"):
        load_settings(folder, own=own, parts=["bank"])


def test_a_confirmed_address_is_fine(own: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text(f'[backbones.agent]\nmodel = "openai/x"\napi_base = "{AWAY}"')
    confirm = [f"backbones.agent.api_base={AWAY}"]
    assert load_settings(folder, confirm, own=own).backbones["agent"].api_base == AWAY
    own.write_text(f'[backbones.agent]\nmodel = "openai/y"\napi_base = "{AWAY}"')
    assert load_settings(folder, own=own).backbones["agent"].api_base == AWAY
    own.unlink()
    monkeypatch.setenv("RB_DSPY_BACKBONES__AGENT__API_BASE", AWAY)
    assert load_settings(folder, own=own).backbones["agent"].api_base == AWAY


def test_the_key_of_one_server_is_not_confirmed_for_another(own: Path, folder: Path) -> None:
    servers = {"agent": ("https://a.example/v1", "A_KEY"), "judge": ("https://b.example/v1", "B_KEY")}
    own.write_text(
        "\n".join(
            f'[backbones.{role}]\nmodel = "openai/y"\napi_base = "{address}"\napi_key_env = "{key}"'
            for role, (address, key) in servers.items()
        )
    )
    folder.write_text('[backbones.agent]\napi_key_env = "B_KEY"')
    with pytest.raises(ConfigError, match=r"backbones\.agent\.api_key_env needs your confirmation"):
        load_settings(folder, own=own)


def test_another_address_than_the_confirmed_one_is_refused(own: Path, folder: Path) -> None:
    own.write_text(f'[backbones.agent]\nmodel = "openai/y"\napi_base = "{AWAY}"')
    folder.write_text('[backbones.agent]\napi_base = "https://other.example/v1"')
    with pytest.raises(ConfigError, match=r"backbones\.agent\.api_base"):
        load_settings(folder, own=own)


def test_the_command_line_reads_the_users_own_file_and_refuses_the_folders_address(
    cli: Any, served: Served, tmp_path: Path
) -> None:
    text = Path("rb.toml").read_text().replace("127.0.0.1", "models.example")
    Path("rb.toml").write_text(text)
    code, _, err = cli("run", "tasks.jsonl")
    assert (code, err.count("\n"), "a-key" in err) == (2, 1, False)
    assert str(tmp_path / "config" / "rb-dspy" / "rb.toml") in err
    confirmed = f"backbones.agent.api_base=http://127.0.0.1:{served.port}/v1"
    assert cli("run", "tasks.jsonl", "-n", "1", "--set", confirmed)[0] == 0
    own = tmp_path / "config" / "rb-dspy" / "rb.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[run]\nseed = 77\n")
    Path("rb.toml").unlink()
    assert lines(cli("config", "run.seed", "--json")[1])[0]["value"] == 77


def test_config_lists_every_key(cli: Any) -> None:
    keys = {each["key"]: each for each in lines(cli("config", "--json", "--set", "run.tasks=3")[1])}
    assert {"run.stream", "program.act.max_steps", "matts.select.orders", "tracking.uri"} < set(keys)
    assert {f"backbones.{role}.model" for role in ROLES} < set(keys)
    assert (keys["run.tasks"]["value"], keys["run.tasks"]["default"]) == (3, 16)
    assert keys["matts.k"]["value"] is None
    assert all(each["meaning"] for each in keys.values())
    assert "frozen" in keys["run.memory"]["choices"]
    shown = cli("config", "run.tasks", "--set", "run.tasks=3")[1]
    assert "= 3" in shown
    assert "default 16" in shown


def test_models_are_checked_and_one_cause_is_named_once(cli: Any, served: Served) -> None:
    rows = lines(cli("models", "check", "--json")[1])
    assert [row["role"] for row in rows] == list(ROLES)
    assert {row["answer"] for row in rows} == {"blue"}
    served.refuse = lambda prompt: 401
    code, _, err = cli("models", "check")
    assert (code, err.count("refused the key: check OPENAI_API_KEY")) == (4, 1), err


def test_the_reflection_model_has_a_table_of_its_own(cli: Any, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "4711")
    served.refuse = lambda prompt: 401
    address = f"backbones.reflection.api_base=http://127.0.0.1:{served.port}/v1"
    where = ("--set", address, "--set", "backbones.reflection.api_key_env=MY_KEY")
    chosen = ("--set", "backbones.reflection.model=openai/big", *where)
    code, out, err = cli("models", "check", "--json", *chosen)
    assert [row["model"] for row in lines(out)][-1] == "openai/big"
    assert "reflection: the provider refused the key in the environment variable MY_KEY" in err
    with pytest.raises(BackboneError, match="--reflection reflection: the provider refused the key in"):
        reflection_model(load_settings(Path("rb.toml"), [each for each in chosen if each != "--set"]), None)
    served.refuse = lambda prompt: None
    lm = reflection_model(load_settings(Path("rb.toml"), [each for each in chosen if each != "--set"]), None)
    assert (lm.model, lm.kwargs["api_key"]) == ("openai/big", "4711")
    code, _, err = cli("run", "--task", "What is 1 and 5?", *chosen)  # it plays no role in a run
    assert code == 0, err


def test_a_key_that_is_not_set_is_one_problem_of_every_role(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    chosen = ("--set", "backbones.agent.model=openai/x", "--set", "backbones.agent.api_key_env=MY_KEY")
    code, out, err = cli("models", "check", "--json", *chosen)
    assert (code, err.count("MY_KEY"), len(lines(out))) == (4, 1, 5)
    assert ", ".join(ROLES) in err
