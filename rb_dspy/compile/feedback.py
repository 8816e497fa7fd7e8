"""Feedback in words, for the language model that writes a better prompt for one predictor.

An optimizer shows that model single calls. This text adds what only the environment and the rest of the stream show:
which verdicts were wrong and why, how tasks ended that were shown a lesson, which attempt was better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rb_dspy.config import MattsMode
from rb_dspy.schema import MemoryItem, Outcome, Task, Trajectory, Verdict
from rb_dspy.steps import Selection
from rb_dspy.stream import RunReport, TaskResult
from rb_dspy.text import counted, middle_cut

MAX_CHARS = 4000
"""Longest feedback."""
MAX_ENTRIES = 5
"""Entries under one heading."""

Entries = list[tuple[TaskResult, str]]

_STOPPED = {
    "max_steps": "was stopped at the step limit",
    "context": "was stopped because the transcript became too long",
    "unparseable": "was stopped because an answer of the agent could not be parsed",
}
_NO_LESSON = re.compile(r"(dropped: |not distilled|no lesson).*", re.DOTALL)


def stream_feedback(report: RunReport, predictor: str, *, mode: MattsMode | None = None, task: str = "") -> str:
    """Describe the run from the point of view of ``predictor``, in at most ``MAX_CHARS`` characters.

    Args:
        report: The run.
        predictor: Its name in the program, such as ``judge.predict``.
        mode: Mode of ``MaTTS``; None for a ``ReasoningBank``. It determines which predictor wrote a lesson.
        task: The instruction of the task whose call is shown beside this text; its entries come first.
    """
    describe = _PREDICTORS.get(predictor)
    lines = [_summary(report), *(describe(_View(report, mode, task)) if describe else [])]
    return _cut("\n".join(lines))


def judge_feedback(gold: Any, verdict: Verdict) -> str:
    """Feedback on one verdict; ``gold`` is an example of the step ``judge``."""
    if verdict.label == "unknown":
        return _cut(f"Wrong: no label could be read. {verdict.reasons}")
    if (verdict.label == "success") == gold.success:
        return f"Right: the environment also says {verdict.label} (reward {gold.reward:g})."
    return _cut(f"Wrong. {_misjudged(gold.task, gold.trajectory, verdict, gold.reward, gold.decisive)}")


def select_feedback(gold: Any, selection: Selection) -> str:
    """Feedback on one choice; ``gold`` is an example of the step ``select``."""
    if gold.rewards[selection.index] == max(gold.rewards):
        return f"Right: no attempt was better than the one that {_ending(gold.trajectories[selection.index])}."
    best = gold.rewards.index(max(gold.rewards))
    note = f" {selection.note}" if selection.note else ""
    return _cut(f"Wrong. {_passed_over(gold.task, gold.trajectories, selection, best, gold.rewards[best] == 1)}{note}")


def agent_feedback(gold: Any, trajectory: Trajectory, outcome: Outcome | None) -> str:
    """Feedback on one rollout; ``gold`` is an example of the step ``agent``."""
    if outcome is None:
        return "The environment does not say whether this task was solved."
    how = "Solved" if outcome.success else "Failed"
    lessons = "".join(f" {_shown(item)}" for item in gold.memory.items)
    return _cut(f"{how} (reward {outcome.reward:g}): the rollout {_ending(trajectory)}.{lessons}")


@dataclass(frozen=True)
class _View:
    report: RunReport
    mode: MattsMode | None
    task: str

    def done(self) -> list[tuple[TaskResult, Any]]:
        """The tasks that ended, with their predictions."""
        return [(result, result.prediction) for result in self.report.results if result.prediction is not None]

    def scored(self, *, lessons: bool) -> list[TaskResult]:
        """The tasks with ground truth that were shown lessons, or with ``lessons`` False those that were not."""
        return [r for r, p in self.done() if r.outcome is not None and bool(p.memory.items) is lessons]

    def listed(self, heading: str, entries: Entries, most: int = MAX_ENTRIES) -> list[str]:
        """The entries under a heading, first those of the call that is shown; empty if there are none."""
        if not entries:
            return []
        mine = [f"- (the call shown here) {text}" for result, text in entries if result.task.instruction == self.task]
        lines = mine + [f"- {text}" for result, text in entries if result.task.instruction != self.task]
        more = [f"- and {len(lines) - most} more"] if len(lines) > most else []
        return [heading, *lines[:most], *more]


def _summary(report: RunReport) -> str:
    first = next((f"; the first error: {middle_cut(each.error, 200)}" for each in report.results if each.error), "")
    return f"The stream had {counted(len(report.results), 'task')}, {report.score()}{first}."


def _judge(view: _View) -> list[str]:
    wrong: Entries = []
    right = unknown = 0
    for result, prediction in view.done():
        known = _known(result)
        verdicts = prediction.get("verdicts") or (prediction.verdict,)
        for rollout, verdict, outcome in zip(result.rollouts, verdicts, result.outcomes, strict=False):
            if outcome is None or verdict is None:
                continue
            if verdict.label == "unknown":
                unknown += 1
            elif (verdict.label == "success") == outcome.success:
                right += 1
            else:
                step = decisive_step(rollout, outcome.success, known)
                wrong.append((result, _misjudged(result.task, rollout, verdict, outcome.reward, step)))
    unread = f", {unknown} without a label" if unknown else ""
    return [f"Verdicts: {right} right, {len(wrong)} wrong{unread}.", *view.listed("Wrong verdicts:", wrong)]


def _lessons(author: str, view: _View) -> list[str]:
    lessons: dict[str, tuple[float, TaskResult, str]] = {}
    dropped: Entries = []
    for result, prediction in view.done():
        if author not in _authors(result, view.mode):
            continue
        if note := _NO_LESSON.search(prediction.experience.note):
            dropped.append((result, f"on task {_quoted(result.task)}: {middle_cut(note[0], 300)}"))
        for item in prediction.memory_items:  # the same text learned again is the same lesson
            uses = [u for u, p in view.done() if u.outcome and any(shown.id == item.id for shown in p.memory.items)]
            share = _solved(uses) / len(uses) if uses else 2.0
            lessons.setdefault(item.id, (share, result, _lesson(result, item, uses)))
    if not lessons and not dropped:
        return ["You wrote none of the lessons of this stream."]
    worst_first: Entries = [(source, text) for _, source, text in sorted(lessons.values(), key=lambda each: each[0])]
    without = view.scored(lessons=False)
    return [
        *view.listed("Lessons of yours, first those after which tasks failed:", worst_first, 2 * MAX_ENTRIES),
        *view.listed("Lessons of yours that were not stored, and why:", dropped),
        f"For comparison, tasks without any lesson: {_solved(without)} of {len(without)} solved.",
    ]


def _lesson(source: TaskResult, item: MemoryItem, uses: Sequence[TaskResult]) -> str:
    """A lesson, and how the tasks ended that were shown it."""
    lesson = f"{item.title!r} (from task {_quoted(source.task)}): {middle_cut(item.content, 160)}"
    if not uses:
        return f"{lesson} It was shown for no later task with ground truth."
    solved = [_quoted(use.task) for use in uses if use.solved]
    parts = [lesson, f"Shown for {counted(len(uses), 'task')}, {len(solved)} solved."]
    parts += [f"Solved with it: {', '.join(solved[:3])}."] if solved else []
    for use in [use for use in uses if not use.solved][:2]:
        parts.append(f"Failed with it: {_quoted(use.task)}, which {_ending(use.prediction.trajectory)}.")  # type: ignore[union-attr]
    return " ".join(parts)


def _agent(view: _View) -> list[str]:
    failed: Entries = []
    partly: Entries = []
    for result, prediction in view.done():
        known = _known(result)
        losing = [rollout for rollout, success in known if not success]
        if not losing:
            continue
        shown = prediction.trajectory if prediction.trajectory in losing else losing[0]
        parts = [f"{_quoted(result.task)} {_ending(shown)}.", *map(_shown, prediction.memory.items[:3])]
        step = decisive_step(shown, False, known)
        winner = next((rollout for rollout, success in known if success), None)
        if winner is not None and step is not None and step <= len(winner.steps):
            parts.append(f"Another rollout solved it; there, {_step(winner, step)}.")
        (partly if result.solved else failed).append((result, " ".join(parts)))
    counts = {lessons: view.scored(lessons=lessons) for lessons in (True, False)}
    return [
        f"Tasks with lessons: {_solved(counts[True])} of {len(counts[True])} solved;"
        f" without: {_solved(counts[False])} of {len(counts[False])}.",
        *view.listed("Failed:", failed),
        *view.listed("Solved, but not by every rollout; one that failed:", partly),
    ]


def _selector(view: _View) -> list[str]:
    lost: Entries = []
    choices = 0
    for result, prediction in view.done():
        selection = prediction.get("selection")
        rewards = [outcome.reward for outcome in result.outcomes if outcome is not None]
        if selection is None or len(rewards) < max(2, len(result.rollouts)) or len(set(rewards)) == 1:
            continue
        choices += 1
        best = rewards.index(max(rewards))
        if rewards[selection.index] < rewards[best]:
            success = any(outcome.success for outcome in result.outcomes if outcome and outcome.reward == rewards[best])
            lost.append((result, _passed_over(result.task, result.rollouts, selection, best, success)))
    return [
        f"Of {counted(choices, 'choice')} among attempts with different rewards, {choices - len(lost)} took the best.",
        *view.listed("A better attempt was passed over:", lost),
    ]


def _refine(first: bool, view: _View) -> list[str]:
    """Describe the first check of each task; with ``first`` False the later ones."""
    groups: dict[tuple[bool, str], Entries] = {}
    for result, _ in view.done():
        reached = 0  # number of the pass that a check looks at
        for number, (check, rollout) in enumerate((c, r) for r in result.rollouts for c in r.checks):
            passes = [*result.passes[reached : reached + 2], None, None]
            reached += check.decision == "revise"
            before, after = passes[0], passes[1] if check.decision == "revise" else passes[0]
            if (number == 0) is not first or before is None or after is None:
                continue
            at = f" The work ended at step {check.after}: {_step(rollout, check.after)}." if check.after else ""
            now = f" It is {'right' if after.success else 'wrong'} now." if check.decision == "revise" else ""
            text = f"{_quoted(result.task)}: your findings were: {middle_cut(check.findings, 240)}{at}{now}"
            groups.setdefault((before.success, check.decision), []).append((result, text))
    return [
        f"Right work was confirmed {counted(len(groups.get((True, 'confirm'), ())), 'time')}.",
        *view.listed("Wrong work that was confirmed:", groups.get((False, "confirm"), [])),
        *view.listed("Right work that was changed:", groups.get((True, "revise"), [])),
        *view.listed("Wrong work that was changed:", groups.get((False, "revise"), [])),
    ]


_PREDICTORS: dict[str, Callable[[_View], list[str]]] = {
    "act.predict": _agent,
    "judge.predict": _judge,
    "distill.success": partial(_lessons, "distill.success"),
    "distill.failure": partial(_lessons, "distill.failure"),
    "review.predict": lambda view: [*_judge(view), *_lessons("review.predict", view)],
    "contrast.predict": partial(_lessons, "contrast.predict"),
    "select.predict": _selector,
    "refine.first": partial(_refine, True),
    "refine.again": partial(_refine, False),
}


def _authors(result: TaskResult, mode: MattsMode | None) -> set[str]:
    """The predictors that may have written the lessons of a task; a program has not all of them."""
    experience = result.prediction.experience  # type: ignore[union-attr]
    if experience is None:
        return set()
    if len(experience.trajectories) > 1 and mode == "parallel":
        return {"contrast.predict"}
    chosen = result.label if mode in ("best_of_n", "sequential") else None
    labels = [chosen] if chosen else [verdict.label for verdict in experience.verdicts]
    return {"review.predict"} | {"distill.success" if label == "success" else "distill.failure" for label in labels}


def decisive_step(trajectory: Trajectory, success: bool, others: Iterable[tuple[Trajectory, bool]]) -> int | None:
    """Number of the step, from 1, at which it diverges from rollouts of the same task with the opposite outcome.

    The latest divergence counts. Without such a rollout it is the last step; None if there are no steps.
    """
    actions = [step.action for step in trajectory.steps]
    parted = []
    for other, ended in others:
        if ended is not success:
            pairs = enumerate(zip(actions, (step.action for step in other.steps), strict=False))
            parted.append(next((n for n, (a, b) in pairs if a != b), min(len(actions), len(other.steps))))
    return (min(max(parted) + 1, len(actions)) if parted else len(actions)) or None


def _known(result: TaskResult) -> list[tuple[Trajectory, bool]]:
    """The rollouts with ground truth, and whether each succeeded."""
    pairs = zip(result.rollouts, result.outcomes, strict=False)
    return [(rollout, outcome.success) for rollout, outcome in pairs if outcome is not None]


def _misjudged(task: Task, trajectory: Trajectory, verdict: Verdict, reward: float, step: int | None) -> str:
    truth = "failure" if verdict.label == "success" else "success"
    decided = f" Step {step} of {len(trajectory.steps)} decided it: {_step(trajectory, step)}." if step else ""
    answer = f" The answer was '{middle_cut(trajectory.answer, 120)}'." if trajectory.answer is not None else ""
    return (
        f"{_quoted(task)}: you said {verdict.label}, the environment says {truth} (reward {reward:g}).{decided}{answer}"
        f" Your reasons were: {middle_cut(verdict.reasons, 240)}"
    )


def _passed_over(task: Task, rollouts: Sequence[Trajectory], selection: Selection, best: int, success: bool) -> str:
    """Attempts are named by how they ended, because the selector saw them in another order."""
    why = f" Your analysis was: {middle_cut(selection.analysis, 240)}" if selection.analysis else ""
    return (
        f"{_quoted(task)}: you chose the attempt that {_ending(rollouts[selection.index])}. Better was the one that"
        f" {_ending(rollouts[best])}; the environment says that it {'succeeded' if success else 'came closer'}.{why}"
    )


def _ending(trajectory: Trajectory) -> str:
    """How a rollout ended, as a phrase that follows "the rollout"."""
    how = _STOPPED.get(trajectory.stop_reason, "ended")
    count = len(trajectory.steps)
    return f"{how} after {counted(count, 'step')}; last, {_step(trajectory, count)}" if count else f"{how} at once"


def _step(trajectory: Trajectory, number: int) -> str:
    """Action and observation of step ``number``, from 1."""
    step = trajectory.steps[number - 1]
    seen = f" gave '{middle_cut(step.observation, 160)}'" if step.observation else " was done"
    return f"'{middle_cut(step.action, 120)}'{seen}"


def _shown(item: MemoryItem) -> str:
    return f"It was shown the lesson {item.title!r} ({middle_cut(item.content, 160)})."


def _solved(results: Sequence[TaskResult]) -> int:
    return sum(bool(result.solved) for result in results)


def _quoted(task: Task) -> str:
    return f'"{middle_cut(task.instruction, 120)}"'


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
