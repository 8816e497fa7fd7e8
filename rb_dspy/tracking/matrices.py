"""A matrix of programs and backbones as a run: every cell is a run below it, and all of them a table."""

from __future__ import annotations

from collections.abc import Mapping

from rb_dspy.compile.matrix import Cell, Matrix, shown
from rb_dspy.tracking import notes
from rb_dspy.tracking.compiles import interval
from rb_dspy.tracking.run import Run


class MatrixRun:
    """A matrix that is under way: ``on_cell`` is for ``matrix``, ``log_matrix`` for its result."""

    def __init__(self, run: Run, models: Mapping[str, Mapping[str, str]]) -> None:
        self.run = run
        self._models = models

    @property
    def id(self) -> str:
        """MLflow's id of the run; empty where it could not be made."""
        return self.run.id

    def on_cell(self, cell: Cell) -> None:
        """Log a cell as a run below this one, which has failed where the program could not be run."""
        self.run.guard("logging a cell", self._log_cell, cell)

    def log_matrix(self, found: Matrix) -> None:
        """Log all cells as a table, and what they cost together."""
        self.run.guard("logging the matrix", self._log, found)

    def _log_cell(self, cell: Cell) -> None:
        child = self.run.child(f"{shown(cell.program)} on {cell.backbone}", "cell")
        played = self._models.get(cell.backbone, {})
        child.params(
            {
                "program": cell.program,
                "backbone": cell.backbone,
                **{f"lm.{role}": model for role, model in played.items()},
            }
        )
        child.metrics(
            {
                **interval("held_out/success", cell.success),
                **interval("held_out/difference", cell.difference),
                "held_out/judge_agreement": cell.judge_agreement,
                "held_out/judge_base_rate": cell.judge_base_rate,
                "held_out/judge_balanced": cell.judge_balanced,
                "total/tokens": cell.tokens,
                "total/call_seconds": cell.seconds,
                "total/broken": cell.broken,
            }
        )
        child.tags(
            {
                "rb.recompile": "true" if cell.recompile else "false",
                "error": child.hidden(cell.error) if cell.error else None,
            }
        )
        child.end("FAILED" if cell.error else "FINISHED")

    def _log(self, found: Matrix) -> None:
        self.run.describe(notes.of_matrix(found))
        self.run.metrics(
            {
                "total/cells": len(found.cells),
                "total/recompile": len(found.to_recompile()),
                "total/tokens": sum(cell.tokens for cell in found.cells),
                "total/call_seconds": sum(cell.seconds for cell in found.cells),
                "total/broken": sum(cell.broken for cell in found.cells),
                "total/left_out": found.left_out,
            }
        )
        rows = [self._row(cell) for cell in found.cells]
        self.run.table("matrix.json", {name: [row[name] for row in rows] for name in rows[0]})

    def _row(self, cell: Cell) -> dict[str, object]:
        return {
            "backbone": cell.backbone,
            "program": cell.program,
            **_columns("success", interval("success", cell.success)),
            **_columns("difference", interval("difference", cell.difference)),
            "judge agreement": cell.judge_agreement,
            "judge base rate": cell.judge_base_rate,
            "judge balanced": cell.judge_balanced,
            "tokens": cell.tokens,
            "broken": cell.broken,
            "compile again": cell.recompile,
            "error": self.run.hidden(cell.error),
        }


def _columns(name: str, found: Mapping[str, float | None]) -> dict[str, float | None]:
    """The columns of an interval, empty where there is none."""
    return {each: found.get(each) for each in (name, f"{name}_low", f"{name}_high")}
