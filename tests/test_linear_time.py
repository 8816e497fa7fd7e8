"""Text of others is read in linear time, whatever it repeats: twice the text, at most 2.5 times the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rb_dspy import Backbones, MemoryBank, ReasoningBank
from rb_dspy.environments.answers import AcceptedAnswers
from rb_dspy.environments.functions import parse_call
from rb_dspy.errors import InputError
from rb_dspy.importers import to_trajectory
from rb_dspy.redaction import redact, without_secrets
from rb_dspy.schema import Step, Task, Trajectory
from rb_dspy.steps.transcript import escape_markers, transcript
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm
from rb_dspy.text import estimate_tokens, invisible, normalize, printable, without_thoughts

TASK = Task(id="t", instruction="Read it.")
ACCEPTED = AcceptedAnswers(["42"])

REPEATED = [
    *(" ", "\t", "\r", " \r", "\r\n", "\n", "\x85", "\u2028", "\u200b", "\0", "\ud800", "e\u0301", "漢", "ก", "🙂"),
    *(
        "[",
        "]",
        "[[",
        "[[ ## ",
        "## ]]",
        "{",
        "(",
        "f(",
        "<",
        "'",
        '"',
        "`",
        "```\n",
        "\\",
        "=",
        "==\r",
        "_",
        "-",
        ".",
        "0",
    ),
    *("<think>", "</think>", "<think>\n", "[step\r", "final answer ", "a1", "?key", "key", "&", "9,"),
    *(
        "://",
        "://a:b",
        "@",
        "sk-a",
        "sk-A1",
        "Bearer ",
        "password=",
        "password: ",
        "-----BEGIN PRIVATE KEY-----",
        "eyJa.",
    ),
]


def messages(text: str) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": text}}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": text},
    ]


def rollout(text: str) -> Trajectory:
    return Trajectory(task_id="t", steps=(Step(thought=text, action=text, observation=text),) * 2, answer=text)


def search(text: str) -> None:
    with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
        bank.add("A title", normalize(f"A {text[:1_900]}"))
        bank.retrieve(text, unit="item", mode="hybrid")


def called(text: str) -> None:
    for each in (text, f"f({text}"):
        with pytest.raises(InputError):
            parse_call(each)


READERS: dict[str, Callable[[str], object]] = {
    "normalize": normalize,
    "printable": printable,
    "invisible": invisible,
    "estimate_tokens": estimate_tokens,
    "without_thoughts": without_thoughts,
    "redact": redact,
    "without_secrets": lambda text: without_secrets(f"https://host?{text}"),
    "escape_markers": escape_markers,
    "transcript": lambda text: transcript(rollout(text), 1_000),
    "answers": lambda text: text in ACCEPTED,
    "calls": called,
    "importers": lambda text: to_trajectory(TASK, messages(text)),
    "search": search,
}


def times(read: Callable[[str], object], repeated: str) -> list[float]:
    """CPU seconds for 4,000, 8,000 and 32,000 characters; what is far too slow is not read to the end."""
    spent: list[float] = []
    for size in (4_000, 8_000, 32_000):
        text = (repeated * size)[:size]
        start = time.thread_time()
        read(text)
        spent.append(time.thread_time() - start)
        if spent[-1] > 1:
            break
    return spent


def is_linear(read: Callable[[str], object], repeated: str) -> bool:
    """A busy machine is slow now and then, so the best of several times counts, over three doublings."""
    best = times(read, repeated)
    for _ in range(4):
        if len(best) == 3 and (best[-1] < 0.02 or best[-1] <= 2.5**3 * best[0]):
            return True
        best = [min(pair) for pair in zip(best, times(read, repeated), strict=False)]
    return False


@pytest.mark.parametrize("name", READERS)
def test_time_is_linear(name: str) -> None:
    assert [each for each in REPEATED if not is_linear(READERS[name], each)] == []


@pytest.mark.parametrize("repeated", ["\r" + " " * 78, "\r", " ", "://", "<think>"])
def test_a_whole_learn_is_linear(repeated: str) -> None:
    def script(prompt: Prompt) -> Reply:
        if "label" in prompt.wants:
            return {"reasons": "-", "label": "success"}
        return {"analysis": "-", "memory_items": [{"title": "A title", "description": "-", "content": "A lesson."}]}

    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)))

    def learn(text: str) -> None:
        with MemoryBank.open(None, scope="s", embedder=HashEmbedder()) as bank:
            program.learn(TASK, [*messages(text), {"role": "assistant", "content": "Done."}], bank)

    assert is_linear(learn, repeated)
