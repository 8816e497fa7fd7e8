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

from rb_dspy.schema import MemoryDraft, MemoryItem, Task, Trajectory

_SHARE = 0.8
"""A note repeats a statement if it has all its words that mean something, and this share of all words in order."""
_FEWEST = 4
"""Words of a statement that can be understood alone; fewer are a bare value, such as ``Q-REFUND``."""
_LONGEST = 600
"""Characters; a longer sentence is not one fact."""
_STEM = 6
"""Letters by which words are the same in spite of their endings."""
_TITLE = 200
"""Characters of a title, as in ``MemoryDraft``."""
_TASK = 240
"""Characters of the task's instruction in a description."""

_END = re.compile(r"(?<=[.!?;])\s+|[\r\n]+")
_LABEL = re.compile(r"[A-Z][\w']*(?: [\w']+){0,3}: +")
_UNUSABLE = re.compile(
    r"[{}\[\]?]|\b(?:wrong|incorrect|false|not|no|never|cannot|\w+n['’]t|except|if|unless|until)\b", re.IGNORECASE
)
"""Marks JSON, questions, denials and conditions, which are not repeated in other words."""
WORD = re.compile(r"\w+")
_COMMON = """
    a an and answer answers are as at be by code correct do does error failed for from has have hint how i in info is it
    its know my name note of ok on only or our question result right task that the this to true was were what where
    we which who whose will with yes you your
"""
_POINTING = frozenset(["here", "its", "it", "these", "this", "those", "you", "your"])
"""A statement with one of these may be about anything."""
QUALIFIERS = frozenset(["except", "if", "unless", "until"])
"""A note with one of these says more than the statement that it repeats."""
_DENYING = "wrong incorrect false not no never cannot isn aren wasn weren don doesn didn"
DENIALS = frozenset(_DENYING.split())
_GENERIC = DENIALS | frozenset(_COMMON.split())
"""Words that name no subject."""


@dataclass(frozen=True)
class Statement:
    """A sentence that the environment or a person said."""

    text: str
    action: str
    """The action that it answers; empty if that was right, and for what a person said."""
    is_value: bool
    """Whether it may answer the whole task: feedback, or the observation after the last step; a text with a name or a
    number, or a few words after a label."""
    is_labelled: bool = False
    """Whether a label stood before it, such as ``The right answer is:``."""

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
        last = len(each.steps) - 1
        said = [(step.observation, "" if right else step.action, at == last) for at, step in enumerate(each.steps)]
        said += [(each.feedback, "", True), *([] if said else [(each.first_observation, "", True)])]
        for text, action, is_whole in said:
            for sentence, labelled in _sentences(text):
                words = _words(sentence)
                is_value = is_whole and (bool(_names(sentence)) or (labelled and len(words) < _FEWEST))
                found.setdefault(sentence, Statement(sentence, action, is_value, labelled))
    return list(found.values())


def in_own_words(draft: MemoryDraft, task: Task, said: Sequence[Statement], answer: str | None = None) -> MemoryDraft:
    """Return ``draft`` with the statements that it repeats as its content; unchanged if it repeats none.

    Only words of the draft are dropped, and none that was said elsewhere, so a draft that says more stays as it is. If
    what was said names no subject of the task ("The right answer is: Q-REFUND"), the task becomes the description,
    because another task would be answered with it otherwise.

    Args:
        draft: A note of the distiller or the contraster.
        task: The task that it was learned from.
        said: From ``statements``.
        answer: The agent's own answer to the whole task, if it was right.
    """
    note, subject = f"{draft.title} {draft.content}", _words(task.instruction) - _GENERIC
    repeated = _repeated(note, said)
    if repeated and not _says_more(note, repeated, said, subject):
        content = "; ".join(each.text.rstrip(".;") for each in repeated) + "."
        stated = frozenset().union(*(each.words for each in repeated))
        retells = _words(draft.title) & subject - stated  # such a title is found by tasks about another subject
        title = repeated[0].text.rstrip(".;") if retells else draft.title
        draft = draft.model_copy(update={"title": title[:_TITLE], "content": content})
        is_nameless = not any(_about(each, subject) and not each.words & _POINTING for each in repeated)
    else:
        is_nameless = 2 * len(_words(note) & subject) < len(subject) and _has_value(note, said, answer, subject)
    if is_nameless:
        origin = f"From the task: {' '.join(task.instruction.split())[:_TASK]}"
        draft = draft.model_copy(update={"description": " ".join(filter(None, [draft.description, origin]))})
    return draft


def _repeated(text: str, said: Sequence[Statement]) -> list[Statement]:
    """Return the statements that a note repeats, in order; of similar ones only the nearest."""
    note = _words(text)
    near = []
    for each in said:
        is_usable = len(each.words) >= _FEWEST and not _UNUSABLE.search(each.text)
        if not is_usable or not each.words - _GENERIC <= note:
            continue
        quotes = _names(each.action) & each.words or _words(each.action) <= each.words
        if each.action and quotes and note & DENIALS:
            continue  # the environment may quote the agent, and the note denies it
        if same := _in_order(text, each):
            near.append((same, each))
    kept: list[Statement] = []
    covered: frozenset[str] = frozenset()
    for _, each in sorted(near, key=lambda pair: -pair[0]):
        if 2 * len(each.words - covered) >= len(each.words):
            kept.append(each)
            covered |= each.words
    return [each for each in said if each in kept]


def _in_order(text: str, statement: Statement) -> int:
    """How many words of a statement a text has in order; 0 if it is less than ``_SHARE`` of them."""
    ordered, stated = (WORD.findall(each.casefold()) for each in (text, statement.text))
    blocks = SequenceMatcher(None, ordered, stated, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return same if same >= _SHARE * len(stated) else 0


def hold_all(lessons: Sequence[MemoryItem], trajectory: Trajectory) -> bool:
    """Whether the environment made a statement, and each one is a whole sentence of one of ``lessons``, word for word.

    What a person said is always new. Numbers without a label, such as the rows of a query, do not count.
    """
    known = {_plain(sentence) for each in lessons for sentence in _END.split(each.content)}
    said = [
        each
        for each in statements([trajectory], right=True)
        if each.is_labelled or not all(map(str.isdecimal, each.words))
    ]
    observed = [sentence for step in trajectory.steps for sentence in _END.split(step.observation)]
    if trajectory.feedback or not said or any(len(each.strip()) > _LONGEST for each in observed):
        return False
    return all(_plain(each.text) in known for each in said)


def _plain(sentence: str) -> str:
    """A sentence without differences of space, its last mark, and its label, unless that denies it."""
    label = _LABEL.match(sentence.strip())
    said = sentence.strip()[label.end() :] if label and not _UNUSABLE.search(label[0]) else sentence
    return " ".join(said.split()).rstrip(".!;")


def says_nothing(draft: MemoryDraft, task: Task) -> bool:
    """Whether a draft only retells the task: it would be found by similar tasks, and teach them nothing."""
    return _words(f"{draft.title} {draft.content}") <= _words(task.instruction) | _GENERIC


def _about(statement: Statement, subject: frozenset[str]) -> bool:
    """Whether a statement names the subject, with any ending: ``refunds`` for ``refund``."""
    return not {word[:_STEM] for word in statement.words - _GENERIC}.isdisjoint(word[:_STEM] for word in subject)


def _says_more(note: str, repeated: Sequence[Statement], said: Sequence[Statement], subject: frozenset[str]) -> bool:
    """Whether a note has a condition, or a word that was said elsewhere: another fact, which must not be lost."""
    elsewhere = frozenset().union(*(each.words for each in said if each not in repeated and len(each.words) > 1))
    kept = subject.union(_GENERIC, *(each.words for each in repeated))
    return bool(_words(note) & (QUALIFIERS | (elsewhere - kept)))


def _has_value(note: str, said: Sequence[Statement], answer: str | None, subject: frozenset[str]) -> bool:
    """Whether a note has the value that the task asked for, and nothing that was said connects it with the task."""
    connected = frozenset().union(*(each.words for each in said if _about(each, subject)))
    values = [each.names or each.words for each in said if each.is_value]
    values += [_names(answer)] if answer and _names(answer) else []
    return any(value <= _words(note) and not value <= connected for value in values)


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each sentence without its label, and whether it had one."""
    for each in _END.split(text):
        sentence = each.strip()
        label = _LABEL.match(sentence)
        labelled = label is not None and _words(label[0]) <= _GENERIC
        if label is not None and labelled and _words(label[0]) & {"you", "your"}:
            continue  # the environment quotes the agent
        sentence = sentence[label.end() :] if label is not None and labelled else sentence
        if len(sentence) <= _LONGEST and not _words(sentence) <= _GENERIC:
            yield sentence, labelled


def _words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def _names(text: str) -> frozenset[str]:
    named = (each for each in WORD.findall(text) if each != each.lower() or any(map(str.isdigit, each)))
    return frozenset(each.casefold() for each in named) - _GENERIC
