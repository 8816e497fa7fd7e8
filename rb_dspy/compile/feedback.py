"""What happened in a stream, as the language model reads it that is to write a better prompt for one predictor.

An optimizer shows that model single calls, often one a stream; what only the whole stream tells stands in this text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rb_dspy.compile.evidence import (
    decisive_step,
    ending,
    literals,
    made_of,
    misjudged,
    passed_over,
    quoted,
    short,
    spoken,
    step_text,
    taken_up,
)
from rb_dspy.config import MattsMode
from rb_dspy.schema import MemoryItem, Task, Trajectory
from rb_dspy.stream import RunReport, TaskResult

MOST = 4000
"""Characters of a feedback text."""

SHOWN = 5
"""Entries of one kind."""

_DROPPED = re.compile(r"(dropped: |not distilled|no lesson).*", re.DOTALL)


def stream_feedback(report: RunReport, predictor: str, *, mode: MattsMode | None = None, task: str = "") -> str:
    """What the run says about ``predictor``, as ``judge.predict``; of any other than the eight, how the stream went.

    ``mode`` is that of ``MaTTS``, None for a program that is not scaled. ``task``: the instruction of the task whose
    call is shown beside this text; what is about that one stands first. At most ``MOST`` characters.
    """
    view = _View(report, mode, task)
    told = _TOLD[predictor](view) if predictor in _TOLD else []
    text = "\n".join([view.head(), *told])
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


@dataclass(frozen=True)
class _View:
    """A report with the questions that all predictors ask of it."""

    report: RunReport
    mode: MattsMode | None
    task: str
    said: dict[int, set[str]] = field(default_factory=dict)
    """The words of tasks, by their places, as far as they were asked for: every lesson asks."""
    words: Counter[str] = field(default_factory=Counter)

    def done(self) -> list[tuple[TaskResult, Any]]:
        """The tasks that did not break, with their predictions."""
        return [(result, result.prediction) for result in self.report.results if result.prediction is not None]

    def told(self) -> list[tuple[TaskResult, Any]]:
        """Those of them that somebody knows the outcome of: the rest is neither solved nor failed."""
        return [(result, prediction) for result, prediction in self.done() if not result.unscored]

    def usual(self, item: MemoryItem) -> set[str]:
        """Words that agents used without this lesson; not those that solved a task which it came from."""
        sources = {provenance.task_id for provenance in item.provenances}
        others: Counter[str] = Counter()
        """In how many tasks a word stands that do not count."""
        found: set[str] = set()
        for number, (result, prediction) in enumerate(self.done()):
            shown = any(each.id == item.id for each in prediction.memory.items)
            if shown or result.task.id in sources:
                others.update(self._spoken(number, result.rollouts))
            if result.task.id in sources and not shown:
                both = zip(result.rollouts, result.outcomes, strict=False)
                found |= spoken([rollout for rollout, outcome in both if outcome is not None and not outcome.success])
        return found.union([word for word, tasks in self._all().items() if tasks > others[word]])

    def _all(self) -> Counter[str]:
        """In how many tasks each word stands: united anew for each lesson, a stream of 150 tasks took seconds."""
        if not self.words:
            for number, (result, _) in enumerate(self.done()):
                self.words.update(self._spoken(number, result.rollouts))
        return self.words

    def _spoken(self, number: int, rollouts: Sequence[Trajectory]) -> set[str]:
        if number not in self.said:
            self.said[number] = spoken(rollouts)
        return self.said[number]

    def head(self) -> str:
        results = self.report.results
        errors = [result.error for result in results if result.error]
        dark = sum(result.unscored for result in results)
        said = f"The stream had {_count(len(results), 'task')}, {_solved(results)} solved"
        said += f"; {len(errors)} broke, the first: {short(errors[0], 200)}" if errors else ""
        return said + (f"; of {dark} nobody knows how they ended." if dark else ".")

    def listed(self, what: str, entries: Sequence[tuple[TaskResult, str]]) -> list[str]:
        """The entries under a heading, those of the task whose call is shown first; nothing for none."""
        if not entries:
            return []
        mine = [f"- (the call shown here) {text}" for result, text in entries if result.task.instruction == self.task]
        rest = [f"- {text}" for result, text in entries if result.task.instruction != self.task]
        lines = [*mine, *rest]
        more = [f"- and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return [what, *lines[:SHOWN], *more]


def _judge(view: _View) -> list[str]:
    wrong: list[tuple[TaskResult, str]] = []
    right = unread = 0
    for result, prediction in view.done():
        verdicts = prediction.get("verdicts") or (prediction.verdict,)
        peers = [pair for pair in zip(result.rollouts, result.outcomes, strict=False) if pair[1] is not None]
        for rollout, verdict, outcome in zip(result.rollouts, verdicts, result.outcomes, strict=False):
            if outcome is None:
                continue
            if verdict.label == "unknown":
                unread += 1
            elif (verdict.label == "success") == outcome.success:
                right += 1
            else:
                step = decisive_step(rollout, outcome.success, [(r, o.success) for r, o in peers if o is not None])
                wrong.append((result, misjudged(result.task, rollout, verdict, outcome.reward, step)))
    counts = f"Verdicts: {right} right, {len(wrong)} wrong"
    said = f"{counts}, {unread} without a label that could be read." if unread else f"{counts}."
    return [said, *view.listed("Misjudged:", wrong)]


def _lessons(maker: str) -> Callable[[_View], list[str]]:
    def told(view: _View) -> list[str]:
        harmful: list[tuple[TaskResult, str]] = []
        mixed: list[tuple[TaskResult, str]] = []
        useful: list[tuple[TaskResult, str]] = []
        dark: list[tuple[TaskResult, str]] = []
        unused: list[tuple[TaskResult, str]] = []
        notes: list[tuple[TaskResult, str]] = []
        told_of: set[str] = set()
        for result, prediction in view.done():
            if maker not in makers(result, view.mode):
                continue
            if found := _DROPPED.search(prediction.experience.note):
                notes.append((result, f"on task {quoted(result.task)}: {short(found[0], 300)}"))
            for item in prediction.memory_items:
                if item.id in told_of:  # the same text learned again is the same item
                    continue
                told_of.add(item.id)
                uses = _uses(view, item)
                known = [use for use in uses if not use.unscored]
                right = _solved(known)
                kind = useful if right == len(known) else mixed if right else harmful
                kind = kind if known else dark if uses else unused
                kind.append((result, _line(view, result, item, known, dark=len(uses) - len(known))))
        bare = [result for result, prediction in view.told() if not prediction.memory.items]
        compare = f"For comparison, tasks that were shown no lesson: {_solved(bare)} of {len(bare)} solved."
        told = [
            *view.listed("Lessons of yours after which every task failed:", harmful),
            *view.listed("Lessons of yours after which some tasks failed:", mixed),
            *view.listed("Lessons of yours after which every task was solved:", useful),
            *view.listed("Lessons of yours of which nobody knows what came of them:", dark),
            *view.listed("Lessons of yours that no later task was shown:", unused),
            *view.listed("Lessons of yours that were not kept, and why:", notes),
        ]
        return [*told, compare] if told else ["None of the lessons of this stream is yours."]

    return told


def _line(view: _View, source: TaskResult, item: MemoryItem, uses: Sequence[TaskResult], *, dark: int) -> str:
    """``uses``: the tasks that were shown it and ended as somebody knows; ``dark``: how many others were."""
    own = literals(source.task, item, [result.task for result in view.report.results])
    literal = f" It holds what belongs to its own task only ({', '.join(own)})." if own else ""
    text = f"{item.title!r} (from task {quoted(source.task)}): {short(item.content, 160)}{literal}"
    others = _count(dark, "other task" if uses else "task")
    unseen = f"Shown for {others} that nobody knows the outcome of."
    if not uses:
        return f"{text} {unseen}" if dark else text
    right = [quoted(use.task) for use in uses if use.solved]
    parts = [text, f"Shown for {_count(len(uses), 'task')}, {len(right)} solved.", *([unseen] if dark else [])]
    if right:
        parts.append(f"Helped or did no harm on {', '.join(right[:3])}.")
    for use in [use for use in uses if not use.solved][:2]:
        if use.prediction is not None:
            trajectory = use.prediction.trajectory
            taken = taken_up(item, use.task, trajectory, view.usual(item))
            how = {True: "Misled, being taken up,", False: "Ignored", None: "Shown"}[taken]
            parts.append(f"{how} on {quoted(use.task)}, which {ending(trajectory)}.")
    return " ".join(parts)


def _agent(view: _View) -> list[str]:
    failed: list[tuple[TaskResult, str]] = []
    partly: list[tuple[TaskResult, str]] = []
    beside: list[tuple[TaskResult, str]] = []
    with_lessons = [result for result, prediction in view.told() if prediction.memory.items]
    without = [result for result, prediction in view.told() if not prediction.memory.items]
    for result, prediction in view.done():
        both = list(zip(result.rollouts, result.outcomes, strict=False))
        losing = [rollout for rollout, outcome in both if outcome is not None and not outcome.success]
        winning = [rollout for rollout, outcome in both if outcome is not None and outcome.success]
        if losing:
            shown = prediction.trajectory if prediction.trajectory in losing else losing[0]
            line = _rollout(view, result.task, shown, prediction.memory.items, winning)
            (beside if result.unscored else partly if result.solved else failed).append((result, line))
    return [
        f"Tasks with lessons: {_solved(with_lessons)} of {len(with_lessons)} solved;"
        f" without: {_solved(without)} of {len(without)}.",
        *view.listed("Failed:", failed),
        *view.listed("Solved, but not by every rollout; one that failed:", partly),
        *view.listed("Nobody knows how the rollout ended that was handed in; another failed:", beside),
    ]


def _rollout(
    view: _View, task: Task, failed: Trajectory, lessons: Sequence[MemoryItem], winning: Sequence[Trajectory]
) -> str:
    """How a rollout failed, what it made of its lessons, and where one that succeeded went another way."""
    parts = [f"{quoted(task)} {ending(failed)}."]
    for item in lessons[:3]:
        made = made_of(item, task, failed, view.usual(item))
        parts.append(f"It was shown the lesson {item.title!r} ({short(item.content, 120)}){made}.")
    for other in winning[:1]:
        step = decisive_step(failed, False, [(other, True)])
        if step is not None and step <= len(other.steps):
            parts.append(f"Another rollout solved it; there, {step_text(other, step)}.")
    return " ".join(parts)


def _selector(view: _View) -> list[str]:
    lost: list[tuple[TaskResult, str]] = []
    choices = 0
    for result, prediction in view.done():
        selection = prediction.get("selection")
        rewards = [(outcome.success, outcome.reward) for outcome in result.outcomes if outcome is not None]
        if selection is None or len(rewards) < 2 or len(rewards) != len(result.rollouts) or len(set(rewards)) == 1:
            continue
        choices += 1
        if rewards[selection.index] < max(rewards):
            best = rewards.index(max(rewards))
            lost.append((result, passed_over(result.task, result.rollouts, selection, best, rewards[best][0])))
    return [
        f"Of {_count(choices, 'choice')} among attempts that differed in truth, {choices - len(lost)} took the best.",
        *view.listed("A better attempt was passed over:", lost),
    ]


def _refine(mine: Callable[[int], bool]) -> Callable[[_View], list[str]]:
    """``mine``: whether the check of this number, from 0 on, over all attempts, was the predictor's."""

    def told(view: _View) -> list[str]:
        kinds: dict[tuple[bool, str], list[tuple[TaskResult, str]]] = {}
        for result, _ in view.done():
            reached = 0
            checks = [(check, rollout) for rollout in result.rollouts for check in rollout.checks]
            for number, (check, rollout) in enumerate(checks):
                before = result.passes[reached] if reached < len(result.passes) else None
                reached += check.decision == "revise"
                after = result.passes[reached] if reached < len(result.passes) else None
                if not mine(number) or before is None or after is None:
                    continue
                turned = " It is right now." if after.success else " It is wrong now."
                text = f"{quoted(result.task)}: your findings were: {short(check.findings, 240)}"
                at = f" The work ended at step {check.after}: {step_text(rollout, check.after)}." if check.after else ""
                said = text + at + (turned if check.decision == "revise" else "")
                kinds.setdefault((before.success, check.decision), []).append((result, said))
        right = len(kinds.get((True, "confirm"), ()))
        return [
            f"Right work was confirmed {_count(right, 'time')}.",
            *view.listed("Wrong work that was confirmed:", kinds.get((False, "confirm"), ())),
            *view.listed("Right work that was changed:", kinds.get((True, "revise"), ())),
            *view.listed("Wrong work that was changed:", kinds.get((False, "revise"), ())),
        ]

    return told


_TOLD: dict[str, Callable[[_View], list[str]]] = {
    "judge.predict": _judge,
    "distill.success": _lessons("distill.success"),
    "distill.failure": _lessons("distill.failure"),
    "contrast.predict": _lessons("contrast.predict"),
    "act.predict": _agent,
    "select.predict": _selector,
    "refine.first": _refine(lambda number: number == 0),
    "refine.again": _refine(lambda number: number > 0),
}


def makers(result: TaskResult, mode: MattsMode | None) -> set[str]:
    """The predictors that may have written the lessons of a task; both distillers where nothing tells them apart."""
    assert result.prediction is not None
    experience = result.prediction.experience
    if len(experience.trajectories) > 1 and mode in ("parallel", "sequential"):
        return {"contrast.predict"}
    verdicts = (result.prediction.verdict,) if mode == "best_of_n" else experience.verdicts
    return {"distill.success" if verdict.label == "success" else "distill.failure" for verdict in verdicts}


def _uses(view: _View, item: MemoryItem) -> list[TaskResult]:
    return [
        result for result, prediction in view.done() if any(shown.id == item.id for shown in prediction.memory.items)
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _solved(results: Sequence[TaskResult]) -> int:
    """How many were solved, by ground truth."""
    return sum(bool(result.solved) for result in results)
