"""``rb-dspy compile`` and ``programs``: from tasks to a champion that a run uses."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, Compiled, load_program
from rb_dspy.cli import output
from rb_dspy.cli.tasks import Source, compile_streams
from rb_dspy.config import RunConfig
from rb_dspy.program import ReasoningBank
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.helpers import EVIDENCE, apprentice, locks, teacher
from tests.served import CONFIG, Served, lines, private

TEACHING = {"new_instruction", "proposed_instruction", "module_advice", "discussion"}


Asked = list[Prompt]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """All prompts that the models of commands get; they play a world whose prompts can be improved."""
    prompts: Asked = []

    def play(prompt: Prompt) -> Reply:
        prompts.append(prompt)
        return teacher(prompt) if TEACHING & set(prompt.wants) else apprentice(prompt)

    monkeypatch.setattr(Backbones, "from_settings", lambda configs: Backbones(agent=scripted_lm(play)))
    return prompts


@pytest.fixture
def desk(cli: Any, served: Served, asked: Asked, empty_store: Path, tmp_path: Path) -> Any:
    """The command line with a file of locks, and a store of MLflow."""
    Path("store.db").write_bytes(empty_store.read_bytes())
    tracking = f'[tracking]\nuri = "sqlite:///{tmp_path / "store.db"}"\n'
    Path("rb.toml").write_text(CONFIG.format(port=served.port) + tracking)
    Path("locks.jsonl").write_text("\n".join(task.model_dump_json() for task in locks(8, 4)))
    return cli


COMPILE = ("compile", "locks.jsonl", "--env", "rb_dspy.testing:toys", "--step", "judge", "--budget", "40")


def test_a_compile_is_planned_measured_and_saved_and_the_same_again_asks_nobody(desk: Any, asked: Asked) -> None:
    with private():
        code, out, err = desk(*COMPILE, "--no-track", "--save", "judge.json")
    assert code == 0, err
    assert "held-out" in out
    assert f"+{EVIDENCE}" in out
    compiled = Compiled.load("judge.json")
    assert compiled.changed == ["judge.predict"]
    program = ReasoningBank()
    load_program(program, "judge.json")
    assert EVIDENCE in program.judge.predict.signature.instructions
    assert not Path("mlruns").exists()
    before = len(asked)
    *_, again = lines(desk(*COMPILE, "--no-track", "--json")[1])
    assert asked[before:] == []
    assert (again["improved"], again["changed"]) == (compiled.improved, compiled.changed)
    assert again["held_out"] == compiled.held_out.model_dump(mode="json")


def test_a_compile_tells_its_progress_where_there_is_no_terminal(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SECONDS", 0.01)
    *steps, done = lines(desk(*COMPILE, "--no-track", "--json")[1])
    assert done["step"] == "judge"
    assert {(*step,) for step in steps} == {("done", "total", "seconds_left", "tokens", "about")}
    assert {step["about"].partition(",")[0] for step in steps} >= {"gepa"}
    assert any(step["tokens"] and 0 < step["done"] <= step["total"] for step in steps)


def test_a_reflection_model_that_does_not_answer_is_noticed_at_once(desk: Any, asked: Asked) -> None:
    code, _, err = desk(*COMPILE, "--no-track", "--reflection", "nobody/knows", "--json")
    assert (code, "--reflection nobody/knows" in err, len(asked)) == (4, True, 0)


def test_a_compile_calls_each_model_before_anything_is_paid_for(desk: Any, served: Served, asked: Asked) -> None:
    served.refuse = lambda prompt: 401
    code, _, err = desk(*COMPILE, "--no-track")
    assert (code, len(served.checks), asked) == (4, 1, []), err


def test_the_table_compile_sets_what_no_option_does(desk: Any, asked: Asked) -> None:
    with Path("rb.toml").open("a") as file:
        file.write('[compile]\nstep = "judge"\nbudget = 30\noptimizer = "bootstrap"\n')
    code, out, err = desk(*COMPILE[:4], "--budget", "40", "--no-track", "--json")
    assert code == 0, err
    *_, done = lines(out)
    assert (done["step"], done["budget"], done["optimizer"]) == ("judge", 40, "bootstrap")


def test_a_name_that_cannot_be_registered_is_noticed_at_once(desk: Any, asked: Asked) -> None:
    code, _, err = desk(*COMPILE, "--no-track", "--register", "a/b", "--json")
    assert (code, "a/b" in err, len(asked)) == (2, True, 0)


def test_from_a_compile_to_a_champion_and_back(desk: Any, asked: Asked) -> None:
    code, out, err = desk(*COMPILE, "--register", "locks", "--json")
    assert code == 0, err
    *_, done = lines(out)
    assert (done["version"], bool(done["mlflow_run"])) == (1, True)
    (listed,) = lines(desk("programs", "list", "--json")[1])
    assert (listed["name"], listed["version"], listed["champion"]) == ("locks", 1, done["improved"])
    code, out, err = desk("programs", "register", "locks", "program.json", "--json")
    assert (code, lines(out)[0]["version"]) == (0, 2), err
    assert desk("programs", "promote", "locks", "2", "--force")[0] == 0
    assert [each["champion"] for each in lines(desk("programs", "list", "locks", "--json")[1])] == [False, True]
    (shown,) = lines(desk("programs", "show", "locks", "--json")[1])
    assert shown["version"] == 2
    assert EVIDENCE in shown["prompts"]["judge.predict"]["instructions"]
    assert "locks" in desk("programs", "list")[1]
    assert "rb-dspy run TASKS --program models:/locks/2" in desk("programs", "show", "locks")[1]
    for name in ("locks", "models:/locks/1", "program.json"):
        before = len(asked)
        run = ("run", "locks.jsonl", "-n", "1", "--new", "--env", "rb_dspy.testing:toys")
        code, _, err = desk(*run, "--program", name, "--no-track")
        assert code == 0, err
        assert any(EVIDENCE in prompt.system for prompt in asked[before:])


def test_programs_that_are_not_there_are_one_line(desk: Any) -> None:
    assert "no program" in desk("programs", "list")[1]
    for args in (["show", "nothing"], ["promote", "nothing", "1"], ["register", "x", "missing.json"]):
        code, _, err = desk("programs", *args)
        assert (code, err.count("\n")) == (2, 1), err


def test_a_run_is_tracked_if_it_is_asked_for(desk: Any, tmp_path: Path) -> None:
    import mlflow

    run = ("run", "locks.jsonl", "-n", "1", "--env", "rb_dspy.testing:toys", "--track", "--json")
    code, out, err = desk(*run)
    assert code == 0, err
    tracked = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'store.db'}").get_run(lines(out)[-1]["mlflow_run"])
    assert tracked.info.status == "FINISHED"


@pytest.mark.parametrize(("name", "seed"), [*(("directory", seed) for seed in range(6)), ("sql", 0), ("sql", 20261124)])
def test_the_parts_of_a_named_stream_share_no_world(name: str, seed: int) -> None:
    parts = compile_streams(Source(name, RunConfig(seed=seed)), None)
    worlds = [
        {(task.env_args.get("seed"), task.env_args.get("service"), task.env_args.get("owner")) for task in part}
        for part in (parts.compile, parts.dev, parts.held_out)
    ]
    assert all(worlds)
    assert not any(one & other for one, other in combinations(worlds, 2))
