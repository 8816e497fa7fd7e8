"""Notes in the environment's own words: what it stated, instead of how a language model retold it.

A small model adds comments to a fact ("which is incorrect; the correct owner is ..."), and a later agent follows the
comment. So a note that repeats a statement becomes the statement, without a call. Ours: the paper's prompts generalize,
and their lessons are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from rb_dspy.schema import MemoryDraft, Task, Trajectory

_SHARE = 0.8
"""A note repeats a statement if it has this share of the statement's words, in their order."""
_FEWEST = 4
"""Words of a statement that can be understood alone; fewer are a bare value, such as ``Q-REFUND``."""
_LONGEST = 600
"""Characters; a longer sentence is not one fact."""
_TASK = 240
"""Characters of the task's instruction in a description."""

_END = re.compile(r"(?<=[.!?;])\s+|[\r\n]+")
_LABEL = re.compile(r"[A-Z][\w']*(?: [\w']+){0,3}: +")
_DATA = re.compile(r"[{}\[\]]")
"""Marks JSON, which is not a sentence."""
_WORD = re.compile(r"\w+")
_DENYING = "wrong incorrect false not no never cannot isn aren wasn weren don doesn didn"
_COMMON = """
    a an and answer answers are as at be by code correct do does error failed for from has have hint how i in info is it
    its know my name note of ok on only or our question result right task that the this to true was were what where
    we which who whose will with yes you your
"""
_POINTING = frozenset(["here", "its", "it", "these", "this", "those", "you", "your"])
"""A statement with one of these may be about anything."""
_DENIALS = frozenset(_DENYING.split())
_GENERIC = _DENIALS | frozenset(_COMMON.split())
"""Words that name no subject."""


@dataclass(frozen=True)
class Statement:
    """A sentence that the environment or a person said."""

    text: str
    action: frozenset[str]
    """The words of the action that it answers; empty if that was right, and for what a person said."""
    is_value: bool
    """Whether it may answer the whole task: feedback, or the observation after the only step; a text with a name or a
    number, or a few words after a label."""

    @cached_property
    def words(self) -> frozenset[str]:
        return _words(self.text)

    @cached_property
    def names(self) -> frozenset[str]:
        """The words with a capital letter or a digit. A note with another name or number states another fact."""
        return _names(self.text)


def statements(trajectories: Sequence[Trajectory], *, right: bool = False) -> list[Statement]:
    """Return each sentence of the observations and the feedback once, without a label such as ``Wrong:``.

    ``right``: the agent's actions were right, so that what quotes them is true.
    """
    found: dict[str, Statement] = {}
    for each in trajectories:
        alone = len(each.steps) <= 1
        said = [(step.observation, "" if right else step.action, alone) for step in each.steps]
        said += [(each.feedback, "", True), *([] if said else [(each.first_observation, "", True)])]
        for text, action, is_whole in said:
            for sentence, labelled in _sentences(text):
                words = _words(sentence)
                is_value = is_whole and (bool(_names(sentence)) or (labelled and len(words) < _FEWEST))
                found.setdefault(sentence, Statement(sentence, _words(action), is_value))
    return list(found.values())


def in_own_words(draft: MemoryDraft, task: Task, said: Sequence[Statement], answer: str | None = None) -> MemoryDraft:
    """Return ``draft`` with the statements that it repeats as its content; unchanged if it repeats none.

    If what was said names no subject of the task ("The right answer is: Q-REFUND"), the task becomes the description,
    because another task would be answered with it otherwise.

    Args:
        draft: A note of the distiller or the contraster.
        task: The task that it was learned from.
        said: From ``statements``.
        answer: The agent's own answer to the whole task, if it was right.
    """
    text = f"{draft.title} {draft.content}"
    note, subject = _words(text), _words(task.instruction) - _GENERIC
    repeated = _repeated(text, said)
    named = frozenset().union(*(each.words for each in said if each.words & subject))
    values = [each for each in said if each.is_value]
    values += [Statement(answer, frozenset(), True)] if answer and _names(answer) else []
    values = [each for each in values if not (each.names or each.words) <= named]
    numbers = frozenset(filter(_has_digit, _words(draft.content)))
    known = subject.union(*(each.words for each in said if each in repeated or len(each.words) == 1))
    stated = _words(answer or "").union(*(each.words for each in said))
    if numbers & stated <= known and repeated:  # else the note says something else, too
        content = "; ".join(each.text.rstrip(".;") for each in repeated) + "."
        draft = draft.model_copy(update={"content": content})
        nameless = not any(each.words & subject and not each.words & _POINTING for each in repeated)
    else:
        nameless = any((each.names or each.words) <= note for each in values) and 2 * len(note & subject) < len(subject)
    if nameless:
        task_text = f"From the task: {' '.join(task.instruction.split())[:_TASK]}"
        draft = draft.model_copy(update={"description": " ".join(filter(None, [draft.description, task_text]))})
    return draft


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _repeated(text: str, said: Sequence[Statement]) -> list[Statement]:
    """Return the statements that a note repeats, in order; of similar ones only the nearest."""
    note, ordered = _words(text), _WORD.findall(text.casefold())
    near = []
    for each in said:
        words, in_order = each.words, _WORD.findall(each.text.casefold())
        if len(words) < _FEWEST or len(words & note) < _SHARE * len(words) or not each.names <= note:
            continue
        if each.action and each.action <= words and note & _DENIALS - words:
            continue  # the environment may quote the agent, and the note denies it
        blocks = SequenceMatcher(None, ordered, in_order, autojunk=False).get_matching_blocks()
        same = sum(block.size for block in blocks)
        if same >= _SHARE * len(in_order):
            near.append((same, each))
    kept: list[Statement] = []
    covered: frozenset[str] = frozenset()
    for _, each in sorted(near, key=lambda pair: -pair[0]):
        if 2 * len((each.words & note) - covered) >= len(each.words & note):
            kept.append(each)
            covered |= each.words & note
    return [each for each in said if each in kept]


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each sentence without its label, and whether it had one."""
    for each in _END.split(text):
        sentence = each.strip()
        label = _LABEL.match(sentence)
        labelled = label is not None and _words(label[0]) <= _GENERIC
        sentence = sentence[label.end() :] if label is not None and labelled else sentence
        if len(sentence) <= _LONGEST and not _DATA.search(sentence) and not _words(sentence) <= _GENERIC:
            yield sentence, labelled


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def _names(text: str) -> frozenset[str]:
    named = (each for each in _WORD.findall(text) if each != each.lower() or _has_digit(each))
    return frozenset(each.casefold() for each in named) - _GENERIC
