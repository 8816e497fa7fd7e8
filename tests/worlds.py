"""Scripted agents that work in the toy environments, for tests of everything above the steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rb_dspy.backbones import Backbones
from rb_dspy.schema import Outcome, Task
from rb_dspy.testing import Prompt, Reply, scripted_lm


class Doors:
    """A hall with doors and a chest: open two doors, and the chest opens if the right one is among them.

    One transcript does not tell which of its two doors that was; attempts that share one door and differ in the other
    do. The ``right`` door is the same in all halls of one maker, so that lesson helps on the next.

    ``env_args``: ``right``, the name of a door, which the task's text does not tell; ``doors``, names (default four).
    """

    action_rules = "one of the listed actions"
    names = ("red", "green", "blue", "yellow")

    def __init__(self, right: str, names: Sequence[str] = names) -> None:
        self._right = right
        self._names = tuple(names)
        self._opened: list[str] = []

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Doors:
        given = task.env_args.get("doors")
        names = tuple(str(name) for name in given) if isinstance(given, list) else cls.names
        return cls(str(task.env_args["right"]), names)

    def reset(self, task: Task) -> str:
        self._opened = []
        return f"A hall with {len(self._names)} doors, all shut, and a locked chest."

    def step(self, action: str) -> tuple[str, bool]:
        name = action.removeprefix("open the ").removesuffix(" door")
        if action not in (self.valid_actions() or ()):
            return f"Nothing happens: {action!r} is not possible here.", False
        self._opened.append(name)
        if not self._done:
            return f"The {name} door is open. The chest is locked.", False
        chest = "springs open" if self._right in self._opened else "stays locked"
        return f"The {name} door is open, and the hall locks all others. The chest {chest}.", True

    def valid_actions(self) -> Sequence[str] | None:
        return () if self._done else tuple(f"open the {n} door" for n in self._names if n not in self._opened)

    def answer(self) -> str | None:
        return None

    def outcome(self) -> Outcome:
        success = self._done and self._right in self._opened
        return Outcome(reward=float(success), success=success, info={"right": self._right})

    def close(self) -> None:
        """Nothing to release."""

    @property
    def _done(self) -> bool:
        return len(self._opened) == 2


def corridor(task_id: str = "corridor/1", length: int = 3) -> Task:
    return Task(
        id=task_id,
        instruction=f"Walk through the corridor called {task_id}.",
        env="corridor",
        env_args={"length": length},
        template="corridor",
    )


def lock(maker: str, number: int, code: str = "4711") -> Task:
    """Locks of one maker have one code; the task's text names the maker but never the code."""
    return Task(
        id=f"lock/{maker}/{number}",
        instruction=f"Open the lock that {maker} made, serial {number}.",
        env="lock",
        env_args={"code": code},
        template=maker,
    )


def hall(maker: str, number: int, right: str = "blue") -> Task:
    """Halls of one maker have one right door (``Doors``); the task's text names the maker but never the door."""
    return Task(
        id=f"hall/{maker}/{number}",
        instruction=f"Open the chest in the hall that {maker} built, number {number}.",
        env="doors",
        env_args={"right": right},
        template=maker,
    )


def answers(prompt: Prompt) -> Reply:
    """Plays every role. As agent: walks forward; on a lock, uses the code that a lesson names, else guesses.

    As judge: success where the transcript shows that it worked. As selector: the first attempt that worked, else the
    first. On looking back: confirms what worked. As distiller: names the code after a success, and after a failure the
    hint that failed locks give. As contraster: names the code that opened a lock in some attempt.
    """
    if prompt.wants == ("answer",):  # the question of ``models check``
        return {"answer": "blue"}
    if "action" in prompt.wants:
        if "valid_actions" in prompt:
            return {"thought": "The end is ahead.", "action": "forward"}
        known = re.search(r"the code is (\w+)", prompt["memory"])
        return {"thought": "A lesson tells the code." if known else "I guess.", "action": known[1] if known else "0000"}
    if "label" in prompt.wants:
        return {
            "reasons": "The last observation shows it.",
            "label": "success" if worked(prompt["trajectory"]) else "failure",
        }
    if "choice" in prompt.wants:
        found = [number for number, text in enumerate(attempts(prompt["candidates"]), 1) if worked(text)]
        return {"analysis": "The last observations show it.", "choice": found[0] if found else 1}
    if "decision" in prompt.wants:
        good = worked(prompt["trajectory"])
        return {
            "findings": "It worked." if good else "It did not work; try another.",
            "decision": "confirm" if good else "revise",
        }
    if "attempts" in prompt:
        good = [text for text in attempts(prompt["attempts"]) if worked(text)]
        code = re.search(r"action: (\d+)", "\n".join(good))
        content = f"For locks of this maker the code is {code[1]}." if code else "Try something else each time."
        return {"analysis": "Compared.", "memory_items": [item("Do what some did", content)]}
    code = re.search(r"action: (\d+)", prompt["trajectory"])
    if "This attempt succeeded" in prompt.system:
        content = f"For locks of this maker the code is {code[1]}." if code else "Keep going until you are through."
        return {"analysis": "It worked.", "memory_items": [item("Use what worked", content)]}
    return {"analysis": "It failed.", "memory_items": [item("Do not guess", "A guess stays shut; look for a lesson.")]}


def openers(prompt: Prompt) -> Reply:
    """Plays every role in ``Doors``; a world where no rollout alone teaches what decides, and several do.

    As agent: opens the first door by habit, then one that depends on the rollout; with a lesson that names a door, that
    one. As distiller and as contraster by one and the same rule: names the door that all attempts opened which worked,
    and none which failed, where there is exactly one such door; else says something useless.
    """
    if "action" in prompt.wants:
        known = re.search(r"the (\w+) door decides", prompt["memory"])
        shut = re.findall(r"open the \w+ door", prompt["valid_actions"])
        action = shut[(prompt.seed or 0) % len(shut)] if prompt.turns else shut[0]
        if known and f"open the {known[1]} door" in shut:
            action = f"open the {known[1]} door"
        return {"thought": "A lesson tells the door." if known else "One of them it must be.", "action": action}
    if "memory_items" not in prompt.wants:
        return answers(prompt)
    several = "attempts" in prompt
    texts = attempts(prompt["attempts"]) if several else [prompt["trajectory"]]
    doors = deciding(texts)
    if len(doors) == 1:
        content = f"In halls of this maker the {doors[0]} door decides."
        found = item("Open the door that decides", content)
    else:
        found = item("Open doors", "Open two doors, then look at the chest.")
    return {"analysis": f"It may be: {', '.join(doors) or 'anything'}.", "memory_items": [found]}


def worked(transcript: str) -> bool:
    """Whether a transcript of any of the toy environments ends well."""
    return any(text in transcript for text in ("You are through", "It opens", "The chest springs open"))


def attempts(listed: str) -> list[str]:
    """The transcripts in what a contraster or a selector reads."""
    return re.split(r"^=== attempt \d+.* ===\n", listed, flags=re.MULTILINE)[1:]


def deciding(transcripts: Sequence[str]) -> list[str]:
    """The doors that every transcript has which ends well, and none which does not."""
    doors = [(worked(text), set(re.findall(r"action: open the (\w+) door", text))) for text in transcripts]
    good = [opened for ended_well, opened in doors if ended_well]
    bad = [opened for ended_well, opened in doors if not ended_well]
    return sorted(set.intersection(*good).difference(*bad)) if good else []


def item(title: str, content: str) -> dict[str, Any]:
    return {"title": title, "content": content, "description": "When a task is of this kind; not elsewhere."}


def backbones(script: Any = answers, **kwargs: Any) -> Backbones:
    return Backbones(agent=scripted_lm(script, **kwargs))


def prompts(bones: Backbones) -> list[Prompt]:
    found: list[Prompt] = bones.lm("agent").engine.prompts
    return found
