"""What hashes are made of: the bytes that ``json`` gives, which must never change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from rb_dspy.bank.ascii_json import ascii_json

TEXTS = st.text(st.characters(exclude_categories=()))  # lone surrogates as well
VALUES = st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.tuples(inner, inner))


@given(VALUES)
def test_it_is_what_json_gives(value: object) -> None:
    assert ascii_json(value) == json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("each", ["".join(map(chr, range(128))), *'\x00\x1f"\\/\x7f\x80\xff\u2028\ud800\U0001f600'])
def test_character_by_character(each: str) -> None:
    assert ascii_json(["text", each]) == json.dumps(["text", each], separators=(",", ":")).encode()


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        ascii_json(["text", b"a damaged cell"])
