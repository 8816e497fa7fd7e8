"""What a report says about records, and how it looks as JSON, Markdown and HTML."""

from __future__ import annotations

import random
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rb_dspy import Task, TaskStream
from rb_dspy.errors import InputError
from rb_dspy.evaluation import Report
from rb_dspy.evaluation.build import ArmSettings, build_report
from rb_dspy.evaluation.chart import SOLVED, Line, picture, positions
from rb_dspy.evaluation.records import TaskRecord
from rb_dspy.schema import RoleUsage

HOSTILE = '<img src=x onerror="alert(1)"> | `**[x](javascript:1)**\u202e\x1b[31m\n# boo'
USAGE = {"agent": RoleUsage(calls=2, prompt_tokens=900, completion_tokens=100)}


def settings(memory: str = "bank", **changes: Any) -> ArmSettings:
    values = {"learns": memory not in ("none", "oracle"), "needs_lessons": memory == "oracle"}
    values |= {"models": {"agent": "openai/gpt-4o-mini"}, "signal": "judge" if values["learns"] else "none"}
    return ArmSettings(memory=memory, **{**values, **changes})


def stream(tasks: int, orders: int) -> list[TaskStream]:
    first = TaskStream("made up", [Task(id=f"t/{number:03}", instruction=f"Do {number}.") for number in range(tasks)])
    return [first, *(first.permuted(order) for order in range(1, orders))]


def records(
    arm: str, orders: list[TaskStream], solved: Callable[[int, int], bool | None], **fields: Any
) -> list[TaskRecord]:
    """Of every task; ``solved`` gets the number of the task and its position."""
    made = []
    for order, tasks in enumerate(orders):
        for position, task in enumerate(tasks):
            more = {name: value(position) if callable(value) else value for name, value in fields.items()}
            ids, titles = zip(*more.pop("shown", ()), strict=True) if more.get("shown") else ((), ())
            was = solved(int(task.id[2:]), position)
            agrees = (more["verdict"] == "success") == was if "verdict" in more else None
            about = {"arm": arm, "order": order, "position": position + 1, "task": task.id, "steps": 2, "seconds": 1.0}
            lessons = {"shown": ids, "recalled": titles, "judge_agrees": agrees}
            made.append(TaskRecord(**{**about, **lessons, "solved": was, "usage": USAGE, "tokens": 1000, **more}))
    return made


def build(tables: list[list[TaskRecord]], orders: list[TaskStream], **arms: ArmSettings) -> Report:
    every = [record for table in tables for record in table]
    return build_report(orders, arms, every, seed=0, baseline="none", versions={"rb-dspy": "1"})


def learned(tasks: int = 20, orders: int = 4, **fields: Any) -> Report:
    """The bank solves everything from the middle of each order on; none solves every second task."""
    streams = stream(tasks, orders)
    bank = records(
        "bank", streams, lambda task, position: task % 2 == 0 or position >= tasks / 2, learned=("A", "B"), **fields
    )
    none = records("none", streams, lambda task, position: task % 2 == 0)
    return build([none, bank], streams, none=settings("none"), bank=settings())


def test_numbers_of_an_arm() -> None:
    report = learned(verdict="success", shown=lambda position: (("a", "Use it"),) if position else ())
    bank = report.arms["bank"]
    assert bank.success is not None
    assert bank.success.mean == pytest.approx(0.75, abs=0.05)
    assert (bank.steps, bank.tokens, bank.errors, bank.learned) == (2.0, 80_000, 0, 160)
    assert bank.tokens_per_success == pytest.approx(80_000 / (80 * bank.success.mean))
    assert bank.cost == pytest.approx(80 * (900 * 0.15e-6 + 100 * 0.6e-6))
    assert bank.shown == 0.95
    assert bank.judge_agreement == bank.judge_base_rate == pytest.approx(bank.success.mean)
    assert bank.curve[0] is not None
    assert (bank.curve[0] < 0.8, bank.curve[-1]) == (True, 1.0)


def test_a_report_says_when_nothing_was_learned() -> None:
    streams = stream(20, 4)
    tables = [records(arm, streams, lambda task, position: True) for arm in ("none", "bank")]
    report = build(tables, streams, none=settings("none"), bank=settings())
    for text in (str(report), report.to_markdown(), report.to_html()):
        assert "bank learned no lesson, so this says nothing about memory" in text
    assert "says nothing about memory" not in str(learned())


def test_an_arm_that_learned_and_showed_nothing_is_flagged() -> None:
    starved = learned(shown=())
    assert starved.warnings == ["bank learned lessons and showed none, so it says nothing about memory."]
    assert starved.warnings[0] in starved.to_markdown()
    assert not learned(shown=(("a", "Use it"),)).warnings


def test_a_report_says_what_each_arm_shows_and_asks() -> None:
    report = learned(tokens_shown=lambda position: 100 * position, tokens_beyond=6, shown=(("a", "Use it"),))
    bank, none = report.arms["bank"], report.arms["none"]
    assert (bank.signal, bank.tokens_shown, bank.tokens_beyond, bank.calls) == ("judge", 950, 6, 2)
    assert (none.signal, none.tokens_shown, none.shown) == ("none", None, None)
    rows = [line for line in report.to_markdown().splitlines() if line.startswith("| bank | judge")]
    assert rows == ["| bank | judge | left out | 950 | 6 | 2.0 |"]
    assert "tokens shown" in report.to_html()
    assert {"signal", "repeats_tasks", "tokens_shown", "tokens_beyond", "calls"} <= report.rows()[1].keys()


def unequal(baseline: str = "judged", **options: Any) -> Report:
    """``better`` solves everything, the baseline nothing."""
    streams = stream(20, 4)
    fields: dict[str, Any] = {"learned": ("A",), "shown": (("a", "A"),)}
    tables = [
        records(name, streams, lambda task, position, name=name: name == "better", **fields)
        for name in ("judged", "none", "better")
    ]
    arms = {"judged": settings(), "none": settings("none"), "better": settings(signal="outcome")}
    every = [record for table in tables for record in table]
    return build_report(streams, arms, every, seed=0, baseline=baseline, versions={}, **options)


def test_arms_that_learn_from_different_signals_get_no_verdict_unless_asked() -> None:
    report = unequal()
    comparison = report.comparisons["better"]
    assert (comparison.verdict, comparison.better, comparison.difference.mean) == ("UNRESOLVED", False, 1.0)
    for text in (comparison.refused, report.to_markdown(), report.to_html()):
        assert "no verdict, because judged learns from the judge and better learns from the true outcome" in text
    assert "UNRESOLVED: unequal signals" in report.to_markdown()
    assert "judged from the judge; better from the true outcome" in report.warnings[0]
    asked = unequal(unequal_signals=True)
    assert (asked.comparisons["better"].verdict, asked.comparisons["better"].refused) == ("LEARNING", "")
    assert asked.warnings == report.warnings[:1], "it is still said"


def test_a_report_warns_of_each_arm_that_learned_nothing() -> None:
    streams = stream(6, 3)
    tables = [records(name, streams, lambda task, position: True) for name in ("none", "bank", "awm")]
    arms = {"none": settings("none"), "bank": settings(), "awm": settings()}
    assert "awm learned nothing, so it says nothing about memory." in build(tables, streams, **arms).warnings


def test_what_learns_nothing_has_no_signal_that_could_differ() -> None:
    assert unequal("none").comparisons["better"].verdict == "LEARNING"


def test_a_report_warns_if_only_some_arms_repeat_tasks() -> None:
    streams = stream(6, 3)
    names = ("none", "bank", "again")
    fields: dict[str, Any] = {"learned": ("A",), "shown": (("a", "A"),)}
    tables = [records(name, streams, lambda task, position: True, **fields) for name in names]
    arms = {"none": settings("none"), "bank": settings(), "again": settings(repeats_tasks=True)}
    report = build(tables, streams, **arms)
    assert report.warnings == ["Only again may show an agent what was learned from its own task."]
    assert "| again | judge | shown |" in report.to_markdown()
    all_of_them = {**arms, "bank": settings(repeats_tasks=True)}
    assert not build(tables, streams, **all_of_them).warnings


def test_a_model_without_a_price_has_no_cost() -> None:
    streams = stream(6, 3)
    tables = [records(arm, streams, lambda task, position: True) for arm in ("none", "bank")]
    arms = {
        "none": settings("none", models={"agent": "nobody/knows"}),
        "bank": settings(models={"agent": "local/qwen2.5-coder-1.5b"}),
    }
    report = build(tables, streams, **arms)
    assert (report.arms["none"].cost, report.arms["bank"].cost) == (None, 0.0)


def test_lessons_that_helped_and_that_misled() -> None:
    streams = stream(12, 3)
    none = records("none", streams, lambda task, position: task % 2 == 0)

    def shown(position: int) -> tuple[tuple[str, str], ...]:
        return (("good", "Good"),) if position < 6 else (("bad", "Bad"), ("rare", "Rare")) if position == 11 else ()

    bank = records("bank", streams, lambda task, position: position < 6, shown=shown)
    rare = [record for record in bank if record.order == 0]
    bank = rare + [
        record.model_copy(update={"shown": record.shown[:1], "recalled": record.recalled[:1]})
        for record in bank
        if record.order
    ]
    report = build([none, bank], streams, none=settings("none"), bank=settings())
    assert [(each.id, each.times) for each in report.lessons] == [("good", 18), ("bad", 3)]
    assert report.lessons[0].success == 1.0
    assert report.lessons[0].baseline == pytest.approx(0.5, abs=0.25)
    assert report.lessons[-1].difference <= 0
    assert "| Good |" in report.to_markdown(), "an evaluation of an earlier version has no contents"
    told = [
        each.model_copy(update={"recalled_content": tuple(f"Say {id}. " * 99 for id in each.shown)}) for each in bank
    ]
    text = build([none, told], streams, none=settings("none"), bank=settings()).to_markdown()
    (line,) = [each for each in text.splitlines() if each.startswith("| Good")]
    assert line.startswith("| Good: Say good. Say good.")
    assert len(line) < 200


@pytest.mark.parametrize(
    ("oracle", "headroom"), [(0.9, "yes"), (0.5, "no"), (0.62, "unclear")], ids=["gain", "no gain", "some gain"]
)
def test_headroom(oracle: float, headroom: str) -> None:
    streams = stream(60 if headroom == "no" else 20, 4)
    tasks = len(streams[0])
    none = records("none", streams, lambda task, position: task < tasks / 2)
    lessons = records("oracle", streams, lambda task, position: task < tasks * oracle)
    report = build([none, lessons], streams, none=settings("none"), oracle=settings("oracle"))
    assert report.headroom == headroom
    assert report.gain_of_oracle == report.comparisons["oracle"].difference


def test_the_primary_comparison_is_that_of_the_bank() -> None:
    streams = stream(6, 3)
    names = ("none", "raw", "bank", "again")
    tables = [records(name, streams, lambda task, position: True) for name in names]
    report = build(tables, streams, none=settings("none"), raw=settings("raw"), bank=settings(), again=settings("none"))
    assert report.primary == "bank"
    assert [report.comparisons[name].p_holm is None for name in ("raw", "bank", "again")] == [False, True, False]
    assert [row["arm"] for row in report.rows()] == list(names)
    assert report.rows()[0]["difference"] is None


def test_a_row_that_counts_for_all_orders() -> None:
    streams = stream(8, 4)
    none = records("none", streams[:1], lambda task, position: task % 2 == 0)
    bank = records("bank", streams, lambda task, position: True)
    report = build([none, bank], streams, none=settings("none", repeats=True), bank=settings())
    comparison = report.comparisons["bank"]
    assert (comparison.before, comparison.after, comparison.tasks, comparison.orders) == (0.5, 1.0, 8, 4)
    assert report.arms["none"].runs == 8
    oracle = records("oracle", streams[:1], lambda task, position: True)
    both = build([none, oracle], streams, none=settings("none", repeats=True), oracle=settings("oracle", repeats=True))
    assert both.comparisons["oracle"].orders == 1  # eight tasks, and not 32 pairs


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    streams = stream(10, 3)
    none = records("none", streams, lambda task, position: task % 2 == 0)
    bank = records("bank", streams, lambda task, position: task % 3 == 0, shown=(("a", "A"), ("b", "B")))
    mixed = [*none, *bank]
    random.Random(1).shuffle(mixed)
    arms = {"none": settings("none"), "bank": settings()}
    first, second = build([none, bank], streams, **arms), build([mixed], streams, **arms)
    first.save(tmp_path / "first")
    second.save(tmp_path / "second")
    for name in ("report.json", "report.md", "report.html"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert Report.load(tmp_path / "first") == Report.load(tmp_path / "first" / "report.json") == first


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Report.load(tmp_path)
    (tmp_path / "report.json").write_text('{"format": "another"}')
    with pytest.raises(InputError):
        Report.load(tmp_path)


class _Page(HTMLParser):
    """Counts elements, and notes what a hostile text could have brought."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.risky: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        addresses = [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        self.risky += addresses + ([tag] if tag in ("script", "img", "iframe", "link") else [])

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_texts_stay_texts() -> None:
    streams = [TaskStream(HOSTILE, each) for each in stream(6, 3)]
    none = records("none", streams, lambda task, position: False)
    bank = records(HOSTILE, streams, lambda task, position: True, shown=(("x", HOSTILE),))
    report = build_report(
        streams, {"none": settings("none"), HOSTILE: settings()}, [*none, *bank], seed=0, baseline="none", versions={}
    )
    page = _Page()
    page.feed(report.to_html())
    assert page.risky == []
    assert "<img src=x" in page.text
    markdown = report.to_markdown()
    for text in (report.to_html(), markdown, report._repr_html_()):
        assert not {"\u202e", "\x1b"} & set(text)
    rows = [line for line in markdown.splitlines() if line.startswith("|") and "\\# boo" in line]
    assert len(rows) == 5  # of the arm, its memory, its cost, its comparison and the lesson; no cell ends early
    assert all("\\|" in row and "\\<img" in row and "\\`" in row for row in rows)


def test_the_page_stands_alone_in_light_and_dark() -> None:
    html = learned(shown=(("a", "Use it"),)).to_html()
    page = _Page()
    page.feed(html)
    assert page.risky == []
    assert page.elements.count("polyline") == 2
    assert page.elements.count("circle") == 1
    assert "prefers-color-scheme: dark" in html
    assert "http" not in html
    assert html.count("<table>") == 5
    assert learned()._repr_html_().startswith('<div class="rb">')


def test_a_report_of_one_task_and_one_order() -> None:
    streams = stream(1, 1)
    tables = [records(arm, streams, lambda task, position: True) for arm in ("none", "bank")]
    report = build(tables, streams, none=settings("none"), bank=settings())
    assert report.verdict == "UNRESOLVED"
    assert "A verdict needs at least 5 tasks and 3 orders." in report.to_markdown()
    assert "<svg" in report.to_html()
    assert str(report).count("exploratory; a verdict needs at least 5 tasks and 3 orders")
    assert "verdict needs" not in str(learned())


def test_a_report_says_where_it_is_from_and_counts_by_task() -> None:
    report = learned().model_copy(update={"date": "2026-11-24", "command": "rb-dspy evaluate mail.jsonl"})
    for text in (report.to_markdown(), report.to_html()):
        assert "Model openai/gpt-4o-mini; rb-dspy 1; 2026-11-24; rb-dspy evaluate mail.jsonl" in text
        assert "tokens/task" in text
        assert "80,000" not in text
    assert str(report).count("points") == 1
    broke = learned(error=lambda position: "gone" if position == 3 else "")
    assert "Broke and count as not solved: 4 tasks of bank." in broke.to_markdown()


def test_a_row_says_why_an_interval_above_0_is_unresolved() -> None:
    streams = stream(8, 3)
    some = records("none", streams, lambda task, position: task == 0)
    more = [records(f"more{n}", streams, lambda task, position: task < 7) for n in range(2)]
    same = [records(f"same{n}", streams, lambda task, position: task < 5) for n in range(3)]
    arms = {table[0].arm: settings() for table in (*more, *same)}
    report = build([some, records("bank", streams, lambda task, position: task == 0), *more, *same], streams,
                   none=settings("none"), bank=settings(), **arms)  # fmt: skip
    apart = [each for each in report.comparisons.values() if each.verdict == "UNRESOLVED" and each.difference.low > 0]
    assert apart, "the interval is not adjusted, and the p value is"
    assert report.to_markdown().count("UNRESOLVED: adjusted p is 0.05 or more") == len(apart)


@pytest.mark.parametrize("length", [2, 7, 16, 24, 32, 45, 100, 1_234])
def test_ticks_are_even(length: int) -> None:
    ticks = [value for value, _ in positions(length, "").ticks]
    assert 2 <= len(ticks) <= 8
    assert len({later - earlier for earlier, later in pairwise(ticks)}) <= 1
    assert 1 <= ticks[0] <= ticks[-1] <= length


def test_the_main_line_is_drawn_strongest_and_last_with_its_intervals() -> None:
    lines = [Line(name, [(1, 0.2), (2, 0.5)], [(0, 0.4), (0.1, 0.9)]) for name in ("bank", HOSTILE, "none")]
    for scheme in ("light", "dark", "both"):
        drawn = picture(lines, positions(2, "tasks"), SOLVED, main="bank", names=99, scheme=scheme)  # type: ignore[arg-type]
        found = ElementTree.fromstring(drawn)
        curves = [each for each in found.iter() if each.tag.endswith("polyline")]
        assert [each.get("class", "").split()[1] == "main" for each in curves] == [False, False, True]
        assert sum(each.get("class", "").startswith("reach") for each in found.iter()) == 6
        assert ("prefers-color-scheme" in drawn) == (scheme == "both")
