"""A compile as a run: how the best candidate grew, every candidate as a run below it, prompts before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rb_dspy.compile.progress import Progress
from rb_dspy.compile.result import Compiled, Found
from rb_dspy.compile.scores import Comparison, Estimate
from rb_dspy.compile.state import Prompts
from rb_dspy.tracking import notes
from rb_dspy.tracking.described import short
from rb_dspy.tracking.origin import COMPILE_RUN, RESULT, compile_run, result_digest
from rb_dspy.tracking.prompts import register_prompts
from rb_dspy.tracking.run import Run
from rb_dspy.tracking.streams import log_usage

_MOST_CANDIDATES = 200
"""Runs of candidates, the best first; the rest are in ``candidates.json`` only."""


class CompileRun:
    """A compile that is under way: ``on_progress`` is for ``compile_program``, ``log_compiled`` for its result."""

    def __init__(self, run: Run, prefix: str, models: Mapping[str, str]) -> None:
        self.run = run
        self._prefix = prefix
        self._models = models

    @property
    def id(self) -> str:
        """MLflow's id of the run; empty where it could not be made."""
        return self.run.id

    def on_progress(self, progress: Progress) -> None:
        """Log how far the compile is, at its metric calls so far."""
        found: dict[str, float | None] = {"search/best": progress.best, "compile/seconds": progress.seconds}
        for role, used in progress.usage.items():
            found[f"tokens/{role}"] = used.prompt_tokens + used.completion_tokens
        self.run.metrics(found, step=progress.metric_calls, later=True)

    def log_compiled(self, compiled: Compiled) -> None:
        """Log the result: scores with intervals, what it cost, prompts and their difference, every candidate.

        Of one that was found done, the candidates are with the run that logged it first, which this one names.
        """
        self.run.guard("logging the result", self._log, compiled)

    def _log(self, compiled: Compiled) -> None:
        run, found_done = self.run, compiled.found_done
        run.params(
            {
                "optimizer": compiled.optimizer,
                "stage": compiled.stage,
                "budget": compiled.budget,
                "metric_calls": compiled.metric_calls,
                "seed": compiled.seed,
                "orders": compiled.orders,
                "measure": compiled.measure,
                "prompts.after": short(compiled.prompts_after),
                **self._reflected(compiled),
                **{f"examples.{split}": number for split, number in compiled.examples.items()},
                **{f"version.{package}": number for package, number in compiled.versions.items()},
                **{f"hash.{name}": value for name, value in compiled.hashes.model_dump().items() if value},
            }
        )
        run.tags(
            {
                "rb.improved": _said(compiled.improved),
                "rb.clean": _said(_clean(compiled)),
                "rb.changed": ", ".join(compiled.changed) or "nothing",
            }
        )
        first = (run.guard("looking for its first run", compile_run, run.place, compiled) or "") if found_done else ""
        run.tags({COMPILE_RUN: first} if first else {RESULT: result_digest(compiled)})
        run.metrics(compared("dev", compiled.scores.dev) | compared("held_out", compiled.scores.held_out))
        if found_done:
            run.tags({"rb.found_done": _said(True)})
        else:  # else it would have cost twice what it did
            log_usage(run, compiled.usage, self._models, {"total/seconds": compiled.seconds})
        run.metrics(
            {
                "total/broken": compiled.broken,
                "total/proposals_failed": compiled.proposals_failed,
            }
        )
        run.describe(notes.of_compile(compiled, first))
        run.text("prompts.diff", compiled.diff() or "no prompt has changed\n")
        run.made_file("compiled.json", compiled.save)
        self._log_prompts(compiled.prompts_before, compiled.prompts_after)
        if not first:  # which has them
            self._log_candidates(compiled.candidates)

    def _reflected(self, compiled: Compiled) -> dict[str, str]:
        """The agent's model, where it proposed prompts: of another one the run has said so already."""
        alone = "reflection" in compiled.usage and "reflection" not in self._models and "agent" in self._models
        return {"lm.reflection": self._models["agent"]} if alone else {}

    def _log_prompts(self, before: Prompts, after: Prompts) -> None:
        for what, prompts in (("seed", before), ("compiled", after)):
            texts = {name: prompt["instructions"] for name, prompt in prompts.items()}
            run_id = self.run.id if what == "compiled" else ""
            self.run.call(
                "registering prompts", register_prompts, self.run.place, self._prefix, texts, note=what, run_id=run_id
            )

    def _log_candidates(self, candidates: Sequence[Found]) -> None:
        ranked = sorted(enumerate(candidates), key=lambda each: -each[1].score)
        for number, found in ranked[:_MOST_CANDIDATES]:
            child = self.run.child(f"candidate {number}", "candidate")
            child.metrics({"search/score": found.score})
            child.params({"candidate": number})
            for name, prompt in found.prompts.items():
                child.text(f"prompts/{name}.txt", prompt["instructions"])
            child.end()
        rows = [
            (found.score, number, name, prompt["instructions"], len(prompt["demos"]))
            for number, found in ranked
            for name, prompt in found.prompts.items()
        ]
        names = ("score", "candidate", "predictor", "instructions", "demos")
        self.run.table("candidates.json", {name: [row[i] for row in rows] for i, name in enumerate(names)})


def compared(split: str, comparison: Comparison) -> dict[str, float | None]:
    """Before, after and the difference, each with its interval, and what of it broke, as metrics.

    ``SPLIT/clean`` is there where something broke: the difference over the tasks where nothing did.
    """
    found: dict[str, float | None] = {
        f"{split}/tasks": comparison.difference.tasks,
        f"{split}/broken_before": comparison.broken_before,
        f"{split}/broken_after": comparison.broken_after,
    }
    for what in ("before", "after", "difference", "clean"):
        found |= interval(f"{split}/{what}", getattr(comparison, what))
    return found


def interval(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A mean and its interval, as metrics; none where there is no estimate."""
    if estimate is None:
        return {}
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _clean(compiled: Compiled) -> bool:
    """Whether nothing broke: no call of the metric, no score, no proposal."""
    scores = compiled.scores
    return not (compiled.broken or scores.dev.broken or scores.held_out.broken or compiled.proposals_failed)


def _said(yes: bool) -> str:
    return "true" if yes else "false"
