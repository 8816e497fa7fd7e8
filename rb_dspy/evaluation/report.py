"""``Report``: the result of an evaluation, as data. JSON is the record; Markdown and HTML are views of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from rb_dspy.errors import InputError, RBError
from rb_dspy.evaluation.fairness import warnings
from rb_dspy.evaluation.intervals import FEWEST, MIN_ORDERS, MIN_TASKS, Comparison, Interval
from rb_dspy.files import atomic_write, make_folder
from rb_dspy.memories import Signal
from rb_dspy.text import first_error

Headroom = Literal["yes", "no", "unclear"]

FILES = ("report.json", "report.md", "report.html")


class ArmReport(pydantic.BaseModel, frozen=True):
    """One arm in numbers. None means unknown."""

    memory: str
    own: str = ""
    """The memory system that the program itself has, if it is in use."""
    learns: bool = True
    """Whether lessons pass from task to task."""
    needs_lessons: bool = False
    """Whether it gets right lessons, which somebody wrote."""
    signal: Signal | None = None
    """What it learns from: the judge, the true outcome, or no feedback."""
    repeats_tasks: bool = False
    """Whether an agent may be shown what was learned from its own task; False: that is left out."""
    models: dict[str, str]
    """Role -> model."""
    runs: int
    """Tasks that were done, over all orders."""
    repeated: bool
    """One order was run and counts for all: nothing is learned, and the agent samples at temperature 0."""
    success: Interval | None
    """Share of solved tasks, over tasks and orders; errors count as failures."""
    steps: float | None
    """Mean number of steps per task."""
    tokens: int
    """Tokens of all roles."""
    tokens_per_success: float | None
    cost: float | None
    """In US dollars; None if the price of a model is unknown."""
    seconds: float
    errors: int
    """Tasks that broke twice."""
    retried: int
    """Tasks that broke once."""
    unknown: int = 0
    """Runs without a known outcome, of tasks that have one elsewhere; their pairs are left out."""
    curve: list[float | None]
    """Share of solved tasks by position, over all orders, as a moving mean over a fifth of the stream."""
    judged: int = 0
    """Tasks with a verdict, success or failure, and a known outcome."""
    judge_agreement: float | None = None
    """Share of these verdicts that are right."""
    judge_base_rate: float | None = None
    """The agreement of a judge that always gives the same verdict, the better of the two."""
    shown: float | None = None
    """Share of tasks that were shown a lesson."""
    memory_errors: int = 0
    """Tasks that were done without memory, because the answer of a model that it asked could not be used."""
    tokens_shown: float | None = None
    """Tokens (estimated) a task that memory puts into the agent's prompt."""
    tokens_beyond: float | None = None
    """Tokens (estimated) a task that did not fit the cap, which is equal for all arms."""
    calls: float | None = None
    """Language model calls a task, of all roles, also those that failed."""
    learned: int = 0
    """Lessons that were stored, over all orders."""


class LessonEffect(pydantic.BaseModel, frozen=True):
    """The results of tasks that were shown a lesson: an association, not a tested effect.

    Lessons are shown to tasks that resemble their source, together with other lessons, and a few lucky tasks make a
    lesson look good. Use it to choose which lessons to read.
    """

    id: str
    title: str
    content: str = ""
    times: int
    """Tasks that were shown it, over all orders."""
    success: float
    """Share of these that were solved."""
    baseline: float
    """Share of the same tasks in the same orders that the baseline solved."""

    @property
    def difference(self) -> float:
        """``success`` minus ``baseline``."""
        return self.success - self.baseline


class Report(pydantic.BaseModel, frozen=True):
    """The result of an evaluation. ``save`` writes it as JSON, Markdown and HTML; ``load`` reads the JSON."""

    format: Literal["rb_dspy evaluation report"] = "rb_dspy evaluation report"
    version: Literal[1] = 1
    stream: str
    digest: str
    tasks: int
    orders: int
    seed: int
    baseline: str
    primary: str
    """The arm whose comparison is the main one; the others are adjusted for their number."""
    exploratory: bool
    """Fewer than 100 tasks or 8 orders."""
    arms: dict[str, ArmReport]
    comparisons: dict[str, Comparison]
    """Arm -> its comparison with the baseline."""
    headroom: Headroom | None = None
    """Whether oracle lessons help enough for any memory to help; None without the arms none and oracle."""
    gain_of_oracle: Interval | None = None
    """Gain of oracle lessons over no memory."""
    lessons: list[LessonEffect] = []
    """Lessons of the primary arm that were shown at least three times, the best first."""
    versions: dict[str, str] = {}
    date: str = ""
    """When the evaluation was started, as ``2026-11-24``."""
    command: str = ""
    """The command line that ran it; empty if it was called from Python."""

    @property
    def verdict(self) -> str:
        """The verdict of the primary comparison."""
        return self.comparisons[self.primary].verdict

    @property
    def too_small(self) -> bool:
        """Whether the primary comparison has too few tasks or orders for a verdict."""
        comparison = self.comparisons[self.primary]
        alone = not any(self.arms[name].learns for name in (self.baseline, self.primary))
        return comparison.tasks < MIN_TASKS or (
            comparison.orders < MIN_ORDERS and not (alone and comparison.orders == 1)
        )

    @property
    def taught_nothing(self) -> bool:
        """Whether no lesson was shown or learned in the primary arm, so that nothing is said about memory."""
        arm = self.arms[self.primary]
        return arm.learns and not arm.learned and not arm.shown

    @property
    def warnings(self) -> list[str]:
        """What makes arms unequal besides their memory, and arms that say nothing about memory."""
        refused = {name: each.refused for name, each in self.comparisons.items() if name != self.primary}
        return [*warnings(self.arms), *(f"{name}: {why}." for name, why in refused.items() if why)]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each arm: ``pandas.DataFrame(report.rows())``."""
        rows = []
        for name, arm in self.arms.items():
            comparison = self.comparisons.get(name)
            rows.append(
                {
                    "arm": name,
                    "memory": arm.memory,
                    **_flat("success", arm.success),
                    **_flat("difference", comparison.difference if comparison else None),
                    **{key: getattr(comparison, key, None) for key in ("p", "p_holm", "verdict")},
                    **arm.model_dump(exclude={"memory", "models", "success", "curve"}),
                }
            )
        return rows

    def to_markdown(self) -> str:
        """The report as Markdown, for a terminal or a pull request."""
        from rb_dspy.evaluation.markdown import markdown

        return markdown(self)

    def to_html(self) -> str:
        """The report as an HTML page that needs no other file."""
        from rb_dspy.evaluation.page import page

        return page(self)

    def save(self, folder: str | Path) -> None:
        """Write ``report.json``, ``report.md`` and ``report.html``."""
        folder = Path(folder)
        make_folder(folder, error=RBError)
        for name, text in zip(FILES, (self.model_dump_json(indent=1), self.to_markdown(), self.to_html()), strict=True):
            with atomic_write(folder / name) as file:
                file.write(text.encode("utf-8", "backslashreplace") + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a ``report.json``, or the one in a folder. Raises ``InputError`` for any other file."""
        path = Path(path)
        path = path / FILES[0] if path.is_dir() else path
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as exc:
            raise InputError(f"{path}: cannot be read: {exc.strerror}; expected an evaluation's report.json") from exc
        except pydantic.ValidationError as exc:
            field, problem = first_error(exc)
            raise InputError(f"{path}: {field[:100]}: {problem}; expected the report.json of an evaluation") from None

    def __str__(self) -> str:
        note = ", exploratory" if self.exploratory else ""
        note += f"; a verdict needs {FEWEST}" if self.too_small else ""
        note += f"; {self.primary} learned no lesson, so this says nothing about memory" if self.taught_nothing else ""
        comparison = self.comparisons[self.primary]
        note += f"; {comparison.refused}" if comparison.refused else ""
        return f"{self.verdict}: {self.baseline} -> {self.primary}: {comparison}{note}"

    def __repr__(self) -> str:
        return f"Report({self.stream!r}, {self.tasks} tasks x {self.orders} orders, {self})"

    def _repr_html_(self) -> str:
        from rb_dspy.evaluation.page import fragment

        return fragment(self)


def _flat(name: str, interval: Interval | None) -> dict[str, float | None]:
    """The numbers of an interval as columns of a table."""
    values = (None,) * 3 if interval is None else (interval.mean, interval.low, interval.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
