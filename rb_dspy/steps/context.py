"""The window of an agent: what its next prompt holds, and how working memory changes that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dspy

from rb_dspy.steps.memory import NO_MEMORY, Memory
from rb_dspy.steps.transcript import escape_fields
from rb_dspy.steps.working import Context, ContextEdit
from rb_dspy.text import estimate_tokens, normalize

_TURNS = "(the turns above are from earlier tasks)"
"""Stands in the place of the lessons if they are earlier turns."""

Turn = dict[str, Any]
"""Fields of one turn, by name."""


class Window:
    """The turns of a rollout, its lessons, and its archive. All texts are escaped.

    Without working memory it only grows at its end: task and lessons are in the first turn (or the lessons before it),
    and ``dspy.History`` repeats earlier turns byte for byte, so that a server's prefix cache stays valid.
    """

    def __init__(self, memory: Memory, first: Turn, turn: Turn, examples: Sequence[Turn] = ()) -> None:
        """``first``: the fields of the first turn only; ``turn``: those that each turn has; ``examples``: earlier turns
        of other tasks, which stand before the first."""
        self.turn = turn
        """What the environment shows now."""
        self._first, self._block, self._examples = first, escape_fields(memory.block), list(examples)
        parts = zip(memory.items, memory.parts, strict=True) if len(memory.parts) == len(memory.items) else ()
        self._lessons = {} if examples else {item.id: escape_fields(part) for item, part in parts}
        self._in_instructions = memory.position == "system"
        self._done: list[tuple[Turn, Turn]] = []
        self._left_out = set[int]()
        self._notes = dict[int, list[str]]()
        self._shown = dict[int, list[str]]()
        self._archive = dict[str, tuple[str, str]]()
        self._state = ""
        self._problems: list[str] = []

    def add(self, said: Turn, turn: Turn) -> None:
        """Add what the agent said, and what the environment shows after it."""
        self._done.append((self.turn, said))
        self.turn = turn

    def inputs(self, predict: Any) -> Turn:
        """The arguments of the next call of ``predict``.

        Lessons in the instructions are part of the signature, which DSPy's ``Predict`` and ``ChainOfThought`` take as
        an argument; any other module reads them in the first turn.
        """
        inner = predict.predict if isinstance(predict, dspy.ChainOfThought) else predict
        if self._in_instructions and isinstance(inner, dspy.Predict):
            instructions = f"{inner.signature.instructions}\n\nLessons from earlier tasks:\n{self._block}"
            *history, turn = self._turns({})
            return {**turn, **_history(history), "signature": inner.signature.with_instructions(instructions)}
        *history, turn = self._turns(self._lessons_field())
        return {**turn, **_history(history)}

    def _lessons_field(self) -> dict[str, str]:
        return {"memory": _TURNS if self._examples else self._block}

    def shorten(self) -> bool:
        """Leave out the last half of the examples, because the prompt is too long; return False if there are none."""
        shortened = bool(self._examples)
        self._examples = self._examples[: len(self._examples) // 2]
        return shortened

    def context(self) -> Context:
        """What working memory is told about the next prompt."""
        turns = self._turns(self._lessons_field())
        return Context(
            lessons=dict(self._lessons),
            steps=self._steps(),
            archive={name: summary for name, (summary, _) in self._archive.items()},
            state=self._state,
            tokens=sum(estimate_tokens(str(text)) for turn in turns for text in turn.values()),
            problems=tuple(self._problems),
        )

    def edit(self, edits: Iterable[ContextEdit]) -> None:
        """Change the next prompts. What cannot be done is a problem of the next context."""
        self._problems = []
        kinds: dict[str, Callable[[ContextEdit, str], None]] = {
            "show": lambda edit, text: self._show(text),
            "drop": self._drop,
            "archive": self._put_away,
            "read": self._read,
            "rewrite": lambda edit, text: self._rewrite(text),
        }
        for edit in edits:
            change = kinds.get(edit.kind)
            if change is None:
                self._problems.append(f"no edit is called {edit.kind!r:.40}; expected {', '.join(kinds)}")
            else:
                change(edit, escape_fields(normalize(edit.text)))

    def _show(self, text: str) -> None:
        self._shown.setdefault(len(self._done) + 1, []).append(text)

    def _drop(self, edit: ContextEdit, text: str) -> None:
        dropped = {id: self._lessons.pop(id) for id in {*edit.ids} & self._lessons.keys()}
        for part in dropped.values():
            self._block = re.sub(rf"(?m)^{re.escape(part)}(?:\n|\Z)", "", self._block, count=1).rstrip("\n")
        if dropped and not self._lessons:
            self._block = NO_MEMORY
        steps = self._named(edit, [id for id in edit.ids if id not in dropped])
        if steps:
            self._replace(steps, f"[left out: {_listed(steps)}]")

    def _put_away(self, edit: ContextEdit, text: str) -> None:
        name = escape_fields(normalize(edit.name)).strip()
        if not name or name in self._archive:
            why = "is taken" if name else "is empty"
            self._problems.append(f"archive: the name {edit.name!r:.40} {why}; choose another")
            return
        steps = self._named(edit, edit.ids)
        if steps:
            self._archive[name] = text, "\n".join(map(self._text_of, steps))
            self._replace(steps, f"[archived as {name}: {_listed(steps)}] {text}")

    def _read(self, edit: ContextEdit, text: str) -> None:
        name = escape_fields(normalize(edit.name)).strip()
        if name not in self._archive:
            known = ", ".join(self._archive) or "none yet"
            self._problems.append(f"read: nothing is archived as {edit.name!r:.40}; archived: {known}")
            return
        whole = f"[archived as {name}, word for word]\n{self._archive[name][1]}"
        if any(whole in texts for turn, texts in self._shown.items() if turn not in self._left_out):
            self._problems.append(f"read: {name!r:.40} is in the context already")
        else:
            self._show(whole)

    def _rewrite(self, text: str) -> None:
        number = len(self._done)
        self._state = text
        self._left_out, self._notes = set(range(1, number + 1)), {number: [text]}
        self._shown = {turn: texts for turn, texts in self._shown.items() if turn > number}

    def _named(self, edit: ContextEdit, ids: Sequence[str]) -> list[int]:
        """The steps that ``ids`` name, in order; the others are problems."""
        steps = {str(number): number for number in self._steps()}
        for id in ids:
            if str(id) not in steps:
                what = "lesson or step" if edit.kind == "drop" else "step"
                self._problems.append(f"{edit.kind}: no {what} {id!r:.40} is in the context; take one that it lists")
        return sorted({steps[str(id)] for id in ids if str(id) in steps})

    def _replace(self, steps: Sequence[int], note: str) -> None:
        self._left_out.update(steps)
        self._notes.setdefault(steps[-1], []).append(note)

    def _steps(self) -> tuple[int, ...]:
        return tuple(number for number in range(1, len(self._done) + 1) if number not in self._left_out)

    def _text_of(self, number: int) -> str:
        said = self._done[number - 1][1]
        after = self.turn if number == len(self._done) else self._done[number][0]
        lines = [f"{name}: {text}" for name, text in (*said.items(), ("observation", after["observation"])) if text]
        return f"[step {number}] " + "\n".join(lines)

    def _turns(self, lessons: Turn) -> list[Turn]:
        """The turns of the next prompt; the last one is not answered yet.

        What stands in the place of left-out steps is before the next observation.
        """
        turns = list(self._examples)
        once, before = {**self._first, **lessons}, list(self._notes.get(0, ()))
        for number, (turn, said) in enumerate([*self._done, (self.turn, {})], 1):
            is_now = number > len(self._done)
            observation = [turn["observation"]] if is_now or number - 1 not in self._left_out else []
            if number in self._left_out:
                before += [*observation, *self._notes.get(number, ())]
                continue
            texts = [*before, *self._shown.get(number, ()), *observation]
            turns.append({**once, **turn, "observation": "\n\n".join(filter(None, texts)), **said})
            once, before = {}, []
        return turns


def _history(turns: list[Turn]) -> Turn:
    return {"history": dspy.History(messages=turns)}


def _listed(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
