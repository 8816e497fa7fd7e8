"""Words find rows: BM25 within one scope and unit, filters before the ranking, and no text is a query language."""

import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray

from rb_dspy.bank.index.lexical import LexicalIndex
from rb_dspy.bank.index.word_view import MAX_TERMS, search

WORDS = ["sort", "sorts", "sorting", "numbers", "page", "a_b", "b_a", "a_b_a", "the", "don_t", "_", "été"]
Allowed = Callable[[Sequence[int]], NDArray[np.bool_]]


def all_but(*hidden: int) -> Allowed:
    return lambda seqs: np.array([seq not in hidden for seq in seqs], np.bool_)


def found(index: LexicalIndex, text: str, k: int = 10, allowed: Allowed | None = None) -> list[int]:
    return [hit.seq for hit in search(index.view, text, k, allowed or all_but())]


def an_index(*texts: str, stemmed: bool = False) -> LexicalIndex:
    index = LexicalIndex(stemmed=stemmed)
    index.add(list(enumerate(texts, 1)))
    return index


def test_rare_words_count_more_and_more_words_too() -> None:
    index = an_index("open the door", "open the lid", "open the oven door", "sing the song")
    assert found(index, "the oven")[0] == 3
    assert set(found(index, "open door")[:2]) == {1, 3}
    hits = search(index.view, "open the door", 10, all_but())
    assert [hit.score for hit in hits] == sorted([hit.score for hit in hits], reverse=True)
    assert all(hit.score > 0 for hit in hits)
    assert found(index, "nothing shared") == []


def test_case_accents_and_scripts() -> None:
    index = an_index("Crème BRÛLÉE", "Straße nach Köln", "длинный путь", "日本 の 料理")
    assert found(index, "creme brulee") == [1]
    assert found(index, "köln") == found(index, "KOLN") == [2]
    assert found(index, "ДЛИННЫЙ") == [3]
    assert found(index, "料理") == [4]


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
@pytest.mark.parametrize("word", ["naïve", "résumé", "Việt", "İstanbul", "हिन्दी", "עִבְרִית"])
def test_a_word_is_found_however_its_marks_are_written(word: str, asked: str, stored: str) -> None:
    index = an_index("plain", unicodedata.normalize(stored, f"the {word} one"))
    assert found(index, unicodedata.normalize(asked, word)) == [2]


def test_stems_are_a_choice() -> None:
    texts = ("sorting the numbers", "reading a page")
    assert found(an_index(*texts), "sort number") == []
    assert found(an_index(*texts, stemmed=True), "sort number") == [1]


def test_words_of_one_row_in_four_count_only_where_others_find_too_little() -> None:
    texts = [f"often n{row % 700} {'half ' * (row % 2)}" for row in range(1, 2101)]
    view = an_index(*texts).view
    rare = search(view, "n7", 3, all_but())
    assert {hit.seq for hit in rare} == {7, 707, 1407}
    assert search(view, "often half n7", 3, all_but()) == rare
    more = search(view, "often half n7", 4, all_but())
    assert {hit.seq for hit in more[:3]} == {7, 707, 1407}
    assert len(more) == 4
    assert more[0].score > rare[0].score


def test_equals_are_given_newest_first() -> None:
    index = an_index(*["the same words"] * 30)
    assert found(index, "same", 4) == [30, 29, 28, 27]
    assert found(index, "same", 4, all_but(30, 28)) == [29, 27, 26, 25]


def test_what_is_left_out_takes_nobodys_place() -> None:
    index = an_index(*["sort numbers"] * 500, "sort many many other things and numbers too")
    assert found(index, "sort numbers", 1, all_but(*range(1, 501))) == [501]
    assert found(index, "sort numbers", 3, all_but(*range(1, 500))) == [500, 501]
    assert found(index, "sort numbers", 1000) == [*range(500, 0, -1), 501]
    assert found(index, "sort", 0) == []


def test_rows_that_come_again_are_skipped() -> None:
    index = an_index("one", "two")
    index.add([(1, "other"), (2, "other"), (3, "three")])
    index.add([])
    assert len(index) == 3
    assert found(index, "other") == []
    assert found(index, "two") == [2]


def test_empty_index_and_empty_queries() -> None:
    assert found(LexicalIndex(), "word") == []
    index = an_index("word", "")
    for text in ("", " ", "?!", "\0", "_", '"', "''", "\ud800"):
        assert found(index, text) == []


@pytest.mark.parametrize(
    "text",
    [
        'word"',
        '"word',
        "word*",
        "wo*",
        "text:word",
        "NOT word",
        "word AND nothing",
        "NEAR(word other)",
        "^word",
        "{text}: word",
        "word + other",
        "(word",
        "-word",
        "word\0other",
        "'; DROP TABLE words; --word",
        "word\ud800",
    ],
)
def test_no_text_is_syntax(text: str) -> None:
    index = an_index("a word here", "near and not or")
    assert found(index, text)[-1:] in ([], [1], [2])
    assert found(index, "word") == [1]


@given(st.lists(st.text(max_size=40), max_size=8), st.text(max_size=60))
def test_any_text_can_be_kept_and_asked_for(texts: list[str], query: str) -> None:
    index = an_index(*texts)
    hits = search(index.view, query, 5, all_but())
    assert len({hit.seq for hit in hits}) == len(hits) <= 5
    assert all(1 <= hit.seq <= len(texts) and hit.score > 0 for hit in hits)


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=6).map(" ".join), min_size=1, max_size=60),
    st.sets(st.integers(1, 60)),
    st.integers(1, 70),
)
def test_filters_leave_the_order_as_it_was(texts: list[str], hidden: set[int], k: int) -> None:
    index = an_index(*texts)
    every = search(index.view, "a c e", 100, all_but())
    assert {hit.seq for hit in every} == {row for row, text in enumerate(texts, 1) if set("ace") & set(text)}
    assert every == sorted(every, key=lambda hit: (-hit.score, -hit.seq))
    expected = [hit for hit in every if hit.seq not in hidden][:k]
    assert search(index.view, "a c e", k, all_but(*hidden)) == expected


def test_long_queries_are_read_from_their_beginning() -> None:
    index = an_index("first", "last", "x")
    text = " ".join(f"w{number}" for number in range(MAX_TERMS - 1))
    assert found(index, f"first {text} last") == [1]
    assert found(index, f"first {text} " * 20_000) == [1]


@pytest.mark.parametrize("stemmed", [True, False])
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=300).map(" ".join), min_size=1, max_size=30),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=8),
)
@example(["sort " * 200, "sort page " * 70, "page", "the " * 20_000 + "sort", "the page"], ["sort", "page"])
def test_the_scores_are_those_of_sqlite(stemmed: bool, texts: list[str], words: list[str]) -> None:
    """Also of words that the tokenizer splits, of several that have one stem, and in long texts."""
    tokenizer = f"{'porter ' if stemmed else ''}unicode61 remove_diacritics 2"
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, tokenize='{tokenizer}')")
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(texts, 1))
    query = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
    expected = connection.execute(
        "SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score DESC, rowid DESC", (query,)
    ).fetchall()
    connection.close()
    hits = search(an_index(*texts, stemmed=stemmed).view, " ".join(words), len(texts), all_but())
    assert sorted(hit.seq for hit in hits) == sorted(seq for seq, _ in expected)
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], rel=1e-9)


def test_other_scopes_words_do_not_count() -> None:
    """The score in one index is the same whatever another one holds."""
    small = an_index("rare word", "common word")
    before = search(small.view, "rare word", 5, all_but())
    an_index(*["rare rare rare"] * 1000)
    assert search(small.view, "rare word", 5, all_but()) == before


def test_threads() -> None:
    index, errors = LexicalIndex(), []

    def search() -> None:
        for _ in range(60):
            seqs = found(index, "number 7", 3)
            if seqs and len(index) > 20 and seqs[0] % 10 != 7:
                errors.append(seqs)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(1, 2001, 20):
        index.add([(seq, f"number {seq % 10}") for seq in range(start, start + 20)])
    for thread in threads:
        thread.join()
    assert not errors
    assert len(index) == 2000
