"""A matrix as a run: a run below it for every program on every backbone, and nothing that must not be seen."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.compile.matrix import Cell, Matrix, matrix, shown
from rb_dspy.compile.state import save_program
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from rb_dspy.tracking import Tracker
from tests.tracking.made import BETTER, locks, provider, secretive
from tests.worlds import answers

CANARY = "canary9c3d"


def persuaded(prompt: Prompt) -> Reply:
    """Knows every code once the judge's better instruction is there for it to read."""
    if "action" in prompt.wants and BETTER in prompt.system:
        return {"thought": "I was told.", "action": "0000" if "acme" in prompt.text else "4711"}
    return answers(prompt)


def better(path: Path) -> Path:
    program = ReasoningBank()
    predict = program.act.predict
    predict.signature = predict.signature.with_instructions(f"{predict.signature.instructions}\n\n{BETTER}")
    save_program(program, path)
    return path


@pytest.fixture(scope="module")
def made(tracker: Tracker, folder: Path) -> tuple[str, Matrix]:
    """MLflow's id of a tracked matrix, and the matrix: a backbone that works, one with a key, one that is lost."""
    program = ReasoningBank(environments=Lock.make)
    with provider() as port, MemoryBank.open(None, scope="empty", embedder=HashEmbedder()) as bank:
        lms = {
            "quick": Backbones(agent=scripted_lm(persuaded, model="some/quick")),
            "keyed": secretive(port, CANARY),
            "lost": secretive(1, CANARY),
        }
        states = {"better": better(folder / "better.json")}
        with tracker.matrix_run("matrix locks", program, lms, locks(), bank, params={"orders": 1, "seed": 3}) as run:
            found = matrix(program, states, lms, locks(), bank=bank, embedder=HashEmbedder(), on_cell=run.on_cell)
            run.log_matrix(found)
    return run.id, found


def test_its_page_shows_every_cell(made: tuple[str, Matrix], client: Any) -> None:
    fence, head, *rows, end = client.get_run(made[0]).data.tags["mlflow.note.content"].split("\n")
    assert (fence, end, head.split()[:2]) == ("```text", "```", ["backbone", "program"])
    assert [tuple(row.split()[:2]) for row in rows] == [(cell.backbone, shown(cell.program)) for cell in made[1].cells]
    assert [row.endswith("compile again") for row in rows] == [cell.recompile for cell in made[1].cells]
    assert ["could not be run" in row for row in rows] == [cell.success is None for cell in made[1].cells]


@pytest.mark.parametrize("left_out", [0, 2])
def test_tasks_that_count_in_no_cell_are_told_of(
    tracker: Tracker, client: Any, bank: MemoryBank, left_out: int
) -> None:
    cell = Cell(program="seed", backbone="quick")
    with tracker.matrix_run("matrix dark", ReasoningBank(), {}, locks(), bank) as run:
        run.log_matrix(Matrix(stream="feed", orders=1, cells=[cell], left_out=left_out))
    kept = client.get_run(run.id).data
    assert kept.metrics["total/left_out"] == left_out
    assert ("2 tasks left out" in kept.tags["mlflow.note.content"]) == bool(left_out)


@pytest.fixture(scope="module")
def cells(made: tuple[str, Matrix], client: Any) -> dict[str, Any]:
    """The runs of the cells, by name."""
    experiment = client.get_run(made[0]).info.experiment_id
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{made[0]}'")
    return {child.info.run_name: child for child in found}


def test_the_run_says_what_was_tried_on_what(made: tuple[str, Matrix], client: Any) -> None:
    run = client.get_run(made[0])
    assert (run.info.run_name, run.info.status, run.data.tags["rb.kind"]) == ("matrix locks", "FINISHED", "evaluation")
    said = run.data.params
    assert (said["program"], said["orders"], said["seed"], said["bank.items"]) == ("ReasoningBank", "1", "3", "0")
    assert not [name for name in said if name.startswith("lm.")], "the program's own models play in no cell"
    assert run.inputs.dataset_inputs[0].dataset.digest == locks().digest == said["stream.digest"]
    cells, total = made[1].cells, run.data.metrics
    assert (total["total/cells"], total["total/recompile"]) == (6, len(made[1].to_recompile()))
    assert total["total/tokens"] == sum(cell.tokens for cell in cells) > 0
    assert total["total/call_seconds"] == pytest.approx(sum(cell.seconds for cell in cells))


def test_every_cell_is_a_run_below_it(made: tuple[str, Matrix], cells: dict[str, Any]) -> None:
    assert set(cells) == {f"{name} on {lm}" for name in ("uncompiled", "better") for lm in ("quick", "keyed", "lost")}
    for cell in made[1].cells:
        child = cells[f"{shown(cell.program)} on {cell.backbone}"]
        said, numbers = child.data.params, child.data.metrics
        assert (said["program"], said["backbone"], child.data.tags["rb.kind"]) == (cell.program, cell.backbone, "cell")
        assert numbers["total/tokens"] == cell.tokens
        if cell.backbone == "lost":
            assert cell.success is None
            continue
        assert cell.success is not None
        kept = tuple(numbers[f"held_out/success{end}"] for end in ("", "_low", "_high"))
        assert kept == (cell.success.mean, cell.success.low, cell.success.high)
        assert child.info.status == "FINISHED"
    quick = cells["better on quick"]
    assert quick.data.params["lm.agent"] == "some/quick"
    assert (quick.data.metrics["held_out/success"], quick.data.metrics["held_out/difference"]) == (1.0, 0.5)
    assert "held_out/difference" not in cells["uncompiled on quick"].data.metrics


def test_a_cell_that_could_not_be_run_has_failed(made: tuple[str, Matrix], cells: dict[str, Any]) -> None:
    assert "127.0.0.1" in made[1].cell("better", "lost").error
    lost = cells["better on lost"]
    assert (lost.info.status, lost.data.tags["rb.recompile"]) == ("FAILED", "false")
    assert "[hidden]" in lost.data.tags["error"]
    assert "held_out/success" not in lost.data.metrics


def test_all_cells_are_a_table(made: tuple[str, Matrix], client: Any) -> None:
    table = json.loads(Path(client.download_artifacts(made[0], "matrix.json")).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["program"], row["backbone"]) for row in rows] == [
        (cell.program, cell.backbone) for cell in made[1].cells
    ]
    assert [row["success"] for row in rows] == [cell.success and cell.success.mean for cell in made[1].cells]


def test_no_key_and_no_address_is_anywhere(made: tuple[str, Matrix], folder: Path) -> None:
    with sqlite3.connect(folder / "store.db") as database:
        written = "\n".join(database.iterdump())
    database.close()
    files = [file for file in folder.rglob("*") if file.is_file()]
    for secret in (CANARY, "127.0.0.1"):
        assert secret not in written
        assert not [file for file in files if secret.encode() in file.read_bytes()]


def test_a_matrix_that_is_stopped_keeps_its_cells(tracker: Tracker, client: Any) -> None:
    program = ReasoningBank(environments=Lock.make)
    lms = {name: Backbones(agent=scripted_lm(answers)) for name in ("first", "second")}

    def run() -> None:
        with tracker.matrix_run("matrix stopped", program, lms, locks(2)) as going:

            def once(cell: Any) -> None:
                going.on_cell(cell)
                ids.append(going.id)
                raise KeyboardInterrupt

            matrix(program, {}, lms, locks(2), embedder=HashEmbedder(), on_cell=once)

    ids: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run()
    stopped = client.get_run(ids[0])
    assert (stopped.info.status, stopped.data.tags["error"]) == ("KILLED", "interrupted")
    (cell,) = client.search_runs([stopped.info.experiment_id], f"tags.mlflow.parentRunId = '{ids[0]}'")
    assert cell.info.run_name == "uncompiled on first"


def test_a_matrix_takes_a_list_of_tasks(tracker: Tracker, client: Any) -> None:
    program, tasks = ReasoningBank(environments=Lock.make), [*locks(2)]
    lms = {"one": Backbones(agent=scripted_lm(answers))}
    with tracker.matrix_run("matrix of a list", program, lms, tasks) as run:
        found = matrix(program, {}, lms, tasks, embedder=HashEmbedder(), on_cell=run.on_cell)
        run.log_matrix(found)
    said = client.get_run(run.id)
    assert (said.data.params["stream"], said.data.params["stream.tasks"]) == ("tasks", "2")
    assert said.data.params["stream.digest"] == found.stream == locks(2).digest
    assert said.inputs.dataset_inputs[0].dataset.digest == locks(2).digest
    for refused in ("locks.jsonl", [1]):
        with pytest.raises(InputError):
            matrix(program, {}, lms, refused)  # type: ignore[arg-type]
        with pytest.raises(InputError), tracker.matrix_run("none", program, lms, refused):  # type: ignore[arg-type]
            pass


def test_off_it_is_nothing() -> None:
    tracker = Tracker(TrackingConfig(enabled=False))
    lms = {"one": Backbones(agent=scripted_lm(answers))}
    with tracker.matrix_run("matrix", ReasoningBank(environments=Lock.make), lms, locks(1)) as run:
        run.log_matrix(matrix(ReasoningBank(environments=Lock.make), {}, lms, locks(1), embedder=HashEmbedder()))
    assert run.id == ""
