"""What the language models of a compile used, told truly."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15
from dspy.utils.exceptions import LMError

from rb_dspy.backbones import Backbones, metered
from rb_dspy.compile.answers import REFLECTION, Answers, Cast
from rb_dspy.errors import RBError
from rb_dspy.schema import RoleUsage
from rb_dspy.testing import Prompt, Reply, scripted_lm


def script(prompt: Prompt) -> Reply:
    if "down" in prompt.text:
        raise lm15.ServerError("overloaded")
    return "ready"


def asked(kept: Path, *prompts: str, cache: bool = True) -> RoleUsage:
    """What who proposes prompts used."""
    lm = scripted_lm(script, cache=cache)
    cast = Cast(Backbones(agent=lm), Answers(kept), lm)
    with metered() as ledger:
        for prompt in prompts:
            with suppress(LMError):
                cast.reflection(prompt)
    return ledger.usage()[REFLECTION]


def test_a_proposal_that_failed_is_a_call_but_not_a_cached_one(tmp_path: Path) -> None:
    used = asked(tmp_path / "a", "Say ready.", "Say ready.", "You are down.", "Stay down.")
    assert (used.calls, used.cached_calls) == (4, 1)  # the second came from dspy's cache
    assert used.completion_tokens > 0


def test_an_answer_that_was_kept_counts_as_it_did_when_it_came(tmp_path: Path) -> None:
    first = asked(tmp_path / "a", "Say ready.", "Say ready.")
    again = asked(tmp_path / "a", "Say ready.", "Say ready.", "You are down.", cache=False)
    assert (again.calls, again.cached_calls) == (first.calls + 1, first.cached_calls) == (3, 1)
    assert again.completion_tokens == first.completion_tokens


def test_a_file_that_cannot_be_read_or_mended_is_said_in_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(RBError, match=r"folder\.jsonl: cannot be read: Is a directory; .*give another folder$"):
        Answers(tmp_path / "folder.jsonl")

    def refused(path: Path, length: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    (tmp_path / "cut.jsonl").write_text('{"key": "a"')
    monkeypatch.setattr(os, "truncate", refused)
    with pytest.raises(RBError, match=r"cut\.jsonl: cannot be written: Read-only file system; .*goes on from there"):
        Answers(tmp_path / "cut.jsonl")
