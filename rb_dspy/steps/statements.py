"""Notes in the environment's own words: what it stated, instead of how a language model retold it.

A small model adds comments to a fact ("which is incorrect; the correct owner is ..."), and a later agent follows the
comment. So a note that repeats a statement becomes the statement, without a call. Ours: the paper's prompts generalize,
and their lessons are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rb_dspy.schema import MemoryDraft, Task, Trajectory

_SHARE = 0.8
"""A note repeats a statement if it has this share of the statement's words."""
_FEWEST = 4
"""Words of a statement that can be understood alone; fewer are a bare value, such as ``Q-REFUND``."""
_LONGEST = 600
"""Characters; a longer sentence is not one fact."""
_TASK = 240
"""Characters of the task's instruction in a note."""

_END = re.compile(r"(?<=[.!?;])\s+|[\r\n]+")
_LABEL = re.compile(r"[A-Z][\w']*(?: [\w']+){0,3}: +")
_WORD = re.compile(r"\w+")
_DENYING = "wrong incorrect false not no never cannot isn aren wasn weren don doesn didn"
_COMMON = """
    a an and answer answers are as at be by code correct do does error failed for from has have hint how i in info is it
    its know my name note of ok on only or our question result right task that the this to true was were what where
    which who whose will with yes you your
"""
_DENIALS = frozenset(_DENYING.split())
_GENERIC = _DENIALS | frozenset(_COMMON.split())
"""Words that name no subject."""


@dataclass(frozen=True)
class Statement:
    """A sentence that the environment or a person said."""

    text: str
    action: frozenset[str]
    """The words of the action that it answers; empty if that was right, and for what a person said."""
    whole: bool
    """Whether it answers the whole task: feedback, or the observation after the only step."""

    @property
    def words(self) -> frozenset[str]:
        return _words(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The words with a capital letter or a digit. A note with another name or number states another fact."""
        return frozenset(each.casefold() for each in _WORD.findall(self.text) if _is_name(each)) - _GENERIC


def statements(trajectories: Sequence[Trajectory], *, right: bool = False) -> list[Statement]:
    """Return each sentence of the observations and the feedback once, without a label such as ``Wrong:``.

    ``right``: the agent's actions were right, so that what quotes them is true.
    """
    found: dict[str, Statement] = {}
    for each in trajectories:
        whole = len(each.steps) <= 1
        said = [(step.observation, "" if right else step.action, whole) for step in each.steps]
        said += [(each.feedback, "", True), *([] if said else [(each.first_observation, "", True)])]
        for text, action, alone in said:
            for sentence in _sentences(text):
                found.setdefault(sentence, Statement(sentence, _words(action), alone))
    return list(found.values())


def in_own_words(draft: MemoryDraft, task: Task, said: Sequence[Statement], answer: str | None = None) -> MemoryDraft:
    """Return ``draft`` with the statements that it repeats as its content; unchanged if it repeats none.

    If what was said names no subject of the task ("The right answer is: Q-REFUND"), the content ends with the task, as
    another task would be answered with it otherwise.

    Args:
        draft: A note of the distiller or the contraster.
        task: The task that it was learned from.
        said: From ``statements``.
        answer: The agent's own answer to the whole task, if it was right.
    """
    note, subject = _words(f"{draft.title} {draft.content}"), _words(task.instruction) - _GENERIC
    repeated = _repeated(note, said)
    values = [Statement(answer, frozenset(), True)] if answer else []
    values += [each for each in said if each.whole and not each.words & subject]
    content = "; ".join(each.text.rstrip(".;") for each in repeated) + "." if len(repeated) > 1 else ""
    content = content or "".join(each.text for each in repeated) or draft.content
    numbers = frozenset(word for word in _words(draft.content) if _has_digit(word))
    stated = _words(f"{draft.title} {content}").union(subject, *(each.words for each in values))
    if not numbers <= stated:  # the note says something else, too
        content, repeated = draft.content, []
    if repeated:
        nameless = not any(each.words & subject for each in repeated)
    else:
        nameless = any(_is_value(each) and (each.names or each.words) <= note for each in values)
    if nameless:
        content = f"{content} (task: {' '.join(task.instruction.split())[:_TASK]})"
    return draft if content == draft.content else draft.model_copy(update={"content": content})


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _is_name(word: str) -> bool:
    return word != word.lower() or _has_digit(word)


def _is_value(statement: Statement) -> bool:
    return bool(statement.names) or 0 < len(statement.words - _GENERIC) < _FEWEST


def _repeated(note: frozenset[str], said: Sequence[Statement]) -> list[Statement]:
    """Return the statements that ``note`` repeats, in order; of similar ones only the nearest."""
    near = []
    for each in said:
        words = each.words
        if len(words) < _FEWEST or len(words & note) < _SHARE * len(words) or not each.names <= note:
            continue
        if each.action and each.action <= words and note & _DENIALS - words:
            continue  # the environment may quote the agent, and the note denies it
        near.append((each, words & note))
    kept: list[Statement] = []
    covered: frozenset[str] = frozenset()
    for each, words in sorted(near, key=lambda pair: -len(pair[1])):
        if 2 * len(words - covered) >= len(words):
            kept.append(each)
            covered |= words
    return [each for each in said if each in kept]


def _sentences(text: str) -> Iterator[str]:
    for each in _END.split(text):
        sentence = each.strip()
        label = _LABEL.match(sentence)
        if label and _words(label[0]) <= _GENERIC:
            sentence = sentence[label.end() :]
        if 0 < len(sentence) <= _LONGEST:
            yield sentence


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
