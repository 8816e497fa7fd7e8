"""``rb-dspy backbones matrix`` in MLflow: kept where it is asked for, as ``run`` is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import ReasoningBank, save_program
from rb_dspy.backbones import Backbones
from rb_dspy.cli.main import main
from rb_dspy.config import BackboneConfig, Role
from rb_dspy.errors import MissingDependency
from rb_dspy.testing import Prompt, Reply
from tests.cli.desk import CODES, deaf, staffed, write_tasks

MATRIX = ("backbones", "matrix", "--program", "mail=codes.json", "--tasks-file", "mail.jsonl", "--whole")
ON = ("--backbone", "quick=some/quick", "--backbone", "deaf=some/deaf")


@pytest.fixture(autouse=True)
def _at_the_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    staffed(monkeypatch, **{"some/deaf": deaf})
    write_tasks(Path("mail.jsonl"), each=1)
    program = ReasoningBank()
    predict = program.act.predict
    predict.signature = predict.signature.with_instructions(f"{predict.signature.instructions}\n\n{CODES}")
    save_program(program, "codes.json")


@pytest.fixture
def client(empty_store: Path) -> Any:
    """MLflow's own, on the store that is the usual one here."""
    import mlflow

    shutil.copy(empty_store, "rb-mlflow.db")
    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path('rb-mlflow.db').absolute()}")


def called(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    given = main([*args])
    printed = capsys.readouterr()
    assert given == 0, printed
    return printed.out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_where_no_cell_could_be_run_it_ends_as_a_run_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def down(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    staffed(monkeypatch, **{"some/down": down})
    assert main([*MATRIX, "--backbone", "down=some/down", *form]) == 5
    printed = capsys.readouterr()
    assert "error: no cell could be run; the last one, mail on down: " in " ".join(printed.err.split())
    assert "overloaded" in printed.err
    if form:
        assert [cell["success"] for cell in json.loads(printed.out)["cells"]] == [None, None]
    else:
        assert printed.out.count("could not be run") == 2
    one_of_two = ("--backbone", "down=some/down", "--backbone", "quick=some/quick")
    assert main([*MATRIX, *one_of_two, *form]) == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_backbone_that_cannot_be_used_is_told_first_and_once_and_the_others_are_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def keyless(prompt: Prompt) -> Reply:
        raise lm15.AuthError("bad key")

    staffed(monkeypatch, **{"some/mini": keyless})
    assert main([*MATRIX, "--backbone", "quick=some/quick", "--backbone", "mini=some/mini", *form]) == 4
    printed = capsys.readouterr()
    first, *rest = printed.err.splitlines()
    assert first.startswith("mini cannot be used: some/mini: the provider refused the key: check the environment")
    assert rest[-1] == "error: mini: cannot be used, see above; the others, if any, were run"
    assert (printed.out + printed.err).count("bad key") == (3 if form else 1)  # --json has it in each cell
    if form:
        assert len(rest) == 1
        found = json.loads(printed.out)
        assert [cell["unusable"] for cell in found["cells"]] == [False, False, True, True]
        assert found["recompile"] == []
    else:
        assert rest[:-1] == ["uncompiled on quick: 10 tasks in 3 orders", "mail on quick: 10 tasks in 3 orders"]
        assert printed.out.count("could not be run") == 2
        assert "compile again" not in printed.out


def test_a_model_that_is_not_here_costs_only_its_own_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Backbones.from_settings

    def here(configs: dict[Role, BackboneConfig]) -> Backbones:
        if configs["agent"].model == "some/far":
            raise MissingDependency("model far is not on this machine: run `rb-dspy models get far`")
        return made(configs)

    monkeypatch.setattr(Backbones, "from_settings", here)
    assert main([*MATRIX, "--backbone", "far=some/far", "--backbone", "quick=some/quick"]) == 4
    printed = capsys.readouterr()
    said = "far cannot be used: some/far: model far is not on this machine: run `rb-dspy models get far`"
    assert printed.err.splitlines()[0] == said
    assert printed.out.count("could not be run") == 2


@pytest.mark.parametrize("asked", [("--track",), ("--set", "tracking.traces=false")])
def test_a_matrix_is_kept_in_mlflow_on_request(
    capsys: pytest.CaptureFixture[str], client: Any, asked: tuple[str, ...]
) -> None:
    found = json.loads(called(capsys, *MATRIX, *ON, *asked, "--json"))
    run = client.get_run(found["mlflow_run"])
    assert (run.info.run_name, run.data.tags["rb.kind"]) == ("matrix mail", "evaluation")
    assert (run.data.params["orders"], run.data.metrics["total/cells"]) == ("3", 4)
    assert run.inputs.dataset_inputs[0].dataset.profile == '{"num_rows": 10, "templates": 10}'
    children = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    kept: dict[str, Any] = {child.info.run_name: child.data for child in children}
    assert set(kept) == {"uncompiled on quick", "mail on quick", "uncompiled on deaf", "mail on deaf"}
    for cell in found["cells"]:
        data = kept[f"{cell['program'].replace('seed', 'uncompiled')} on {cell['backbone']}"]
        low_high = [data.metrics[f"held_out/success_{end}"] for end in ("low", "high")]
        assert low_high == [cell["success"]["low"], cell["success"]["high"]]
        assert (data.metrics["held_out/success"], data.metrics["total/tokens"]) == (
            cell["success"]["mean"],
            cell["tokens"],
        )
        assert data.params["lm.agent"] == f"some/{cell['backbone']}"
    assert (kept["mail on quick"].tags["rb.recompile"], kept["mail on deaf"].tags["rb.recompile"]) == ("false", "true")
