"""Single pieces of evidence in plain words: how a rollout ended, what decided it, what a step made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

from rb_dspy.schema import MemoryDraft, MemoryItem, Task, Trajectory, Verdict
from rb_dspy.steps import Selection

_WORD = re.compile(r"\w+")

Lesson = MemoryItem | MemoryDraft

_STOPPED = {
    "max_steps": "was stopped at its step limit",
    "context": "was stopped because its transcript had become too long",
    "unparseable": "was stopped because an answer of the agent could not be read",
}


def short(text: str, limit: int) -> str:
    """``text`` on one line, cut in its middle, since its end often decides."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    half = (limit - 3) // 2
    return f"{line[:half]} … {line[-half:]}"


def quoted(task: Task) -> str:
    """A task by what it says."""
    return f'"{short(task.instruction, 120)}"'


def ending(trajectory: Trajectory) -> str:
    """How it ended, as what follows "the rollout"."""
    how = _STOPPED.get(trajectory.stop_reason, "ended")
    if not trajectory.steps:
        return f"{how} before any step"
    count = len(trajectory.steps)
    return f"{how} after {count} step{'s' if count > 1 else ''}; last, {step_text(trajectory, count)}"


def step_text(trajectory: Trajectory, number: int) -> str:
    """What was done in step ``number``, from 1 on, and what came of it."""
    step = trajectory.steps[number - 1]
    seen = f" gave '{short(step.observation, 160)}'" if step.observation else " was done"
    return f"'{short(step.action, 120)}'{seen}"


def decisive_step(trajectory: Trajectory, success: bool, others: Sequence[tuple[Trajectory, bool]]) -> int | None:
    """Number of the step, from 1 on, at which it parts from a rollout of the same task that ended the other way.

    Of several such rollouts the one that parts last counts. Without one it is the last step; None where there is none.
    """
    actions = [step.action for step in trajectory.steps]
    parted = []
    for other, ended in others:
        if ended is success:
            continue
        theirs = [step.action for step in other.steps]
        same = next((i for i, (a, b) in enumerate(zip(actions, theirs, strict=False)) if a != b), None)
        parted.append(min(len(actions), len(theirs)) if same is None else same)
    step = min(max(parted) + 1, len(actions)) if parted else len(actions)
    return step or None


def misjudged(task: Task, trajectory: Trajectory, verdict: Verdict, reward: float, step: int | None) -> str:
    """A wrong verdict, with what decided the rollout."""
    truth = "failure" if verdict.label == "success" else "success"
    decided = (
        f" What decided it is step {step} of {len(trajectory.steps)}: {step_text(trajectory, step)}." if step else ""
    )
    answer = f" The answer was '{short(trajectory.answer, 120)}'." if trajectory.answer is not None else ""
    return (
        f"{quoted(task)}: you said {verdict.label}, the environment says {truth} (reward {reward:g}).{decided}{answer}"
        f" Your reasons were: {short(verdict.reasons, 240)}"
    )


def passed_over(task: Task, trajectories: Sequence[Trajectory], selection: Selection, best: int, solved: bool) -> str:
    """A choice that was not the best one. Attempts are named by their ends: their numbers were shuffled."""
    why = f" Your analysis was: {short(selection.analysis, 240)}" if selection.analysis else ""
    return (
        f"{quoted(task)}: you chose the attempt that {ending(trajectories[selection.index])}. Better was the one that"
        f" {ending(trajectories[best])}; the environment says it {'succeeded' if solved else 'came further'}.{why}"
    )


def taken_up(item: Lesson, task: Task, trajectory: Trajectory, usual: Set[str] = frozenset()) -> bool | None:
    """Whether the agent made use of a lesson, as far as words tell: those that the task itself does not have.

    True where it thought or did one that is not ``usual``, False where none at all. None where it said only words that
    agents use ``usual``ly, also without the lesson, such as the names of commands.
    """
    given = words(task.instruction, trajectory.first_observation)
    own = {word for word in words(item.title, item.content) if len(word) > 3 or word.isdigit()} - given
    said = own & spoken([trajectory])
    return True if said - usual else None if said or not own else False


def made_of(item: Lesson, task: Task, trajectory: Trajectory, usual: Set[str] = frozenset()) -> str:
    """What the agent made of a lesson that it was shown, as what follows "It was shown the lesson"."""
    made = {True: " and took it up", False: " and ignored it", None: "; nothing tells whether it took it up"}
    return made[taken_up(item, task, trajectory, usual)]


def spoken(trajectories: Iterable[Trajectory]) -> set[str]:
    """The words of what was thought and done."""
    return words(*[text for each in trajectories for step in each.steps for text in (step.thought, step.action)])


def words(*texts: str) -> set[str]:
    """The words of ``texts``, whatever their case."""
    return {word for text in texts for word in _WORD.findall(text.casefold())}


def literals(task: Task, item: Lesson, others: Iterable[Task]) -> list[str]:
    """Numbers and names that a lesson shares with ``task``, from which it comes, and with none of ``others``.

    Names are taken to be words with a capital letter inside a sentence.
    """
    known = {
        word for other in others if other.instruction != task.instruction for word in _WORD.findall(other.instruction)
    }
    text = set(_WORD.findall(f"{item.title} {item.description} {item.content}"))
    own = re.findall(r"\b\w*\d\w*\b|(?<=[a-z,;] )[A-Z]\w+", task.instruction)
    return [word for word in dict.fromkeys(own) if len(word) > 1 and word in text and word not in known][:3]
