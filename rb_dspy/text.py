"""Normalize, print and count text. No text is rejected because of its characters."""

from __future__ import annotations

import bisect
import html
import json
import math
import re
from collections.abc import Collection, Iterable

import pydantic

from rb_dspy.redaction import redact

MAX_TEXT = 10_000_000
"""Longest thought, action or observation that is stored, in characters; the rest is cut, and the text says so."""

_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"} | {0x7F: "\u2421"}
"""Control characters -> their visible symbols: NUL becomes U+2400."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNSEEN = r"\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\U000e0100-\U000e01ef"
"""Invisible characters without a meaning that a reader would miss: tags, zero-width spaces, variation selectors."""
_EXECUTED = re.compile(rf"[{_UNSEEN}\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Terminals act on these (controls except tab and line feed, line separators, directional overrides and isolates), or
show nothing.
"""
_HIDDEN = re.compile(f"[{_UNSEEN}]")
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)
UNSPACED = (
    r"\u0e00-\u0edf\u1000-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts whose words are not separated by spaces, or carry endings (Korean): a class of ``re`` and of
PostgreSQL's regular expressions."""
_NAME = r"(?i:(?:[a-z]{1,20}[:_-])?(?:think(?:ing)?|thoughts?|reasoning|analysis|scratchpad|reflection)(?:_process)?)"
_THOUGHT_MARK = re.compile(
    r"(?P<first>^[^\S\n]*+)?(?:(?(first)(?:(?P<fence>`{3,}|~{3,})(?=[^`\n]*$)|(?P<field>\[\[ ## \w+ ## \]\]))|(?!))"
    rf"|(?P<start><{_NAME}(?:[^\S\n][^<>\n]{{0,200}})?>|◁think▷|\[THINK\]|<\|START_THINKING\|>"
    r"|<\|channel>thought\b|<\|open\|>think<\|sep\|>|<\|channel\|>analysis<\|message\|>"
    r"|(?<!.)Here(?: is|'s) my thought process:)"
    rf"|(?P<end></{_NAME}[^\S\n]?>|◁/think▷|\[/THINK\]|<\|END_THINKING\|>|<channel\|>|<\|close\|>think<\|sep\|>"
    r"|(?:(?:<\|end\|>)?<\|start\|>assistant)?<\|channel\|>final(?: ?<\|constrain\|>\w+)?<\|message\|>"
    r"|(?<!.)Here(?: is|'s) my response:))"
    r"(?P<last>(?=[^\S\n]*+$))?",
    re.MULTILINE,
)
"""Starts and ends of thoughts, code fences, headers of dspy's fields; ``first`` and ``last`` on their line or not."""
_ELEMENT = re.compile(r"<(\w+)>")
_MENTION = re.compile(r"(?:<\w+>|\[THINK\])[^\S\n]+[a-z]")  # "<think> is a tag"
_JSON, _SPACE = json.JSONDecoder(strict=False), re.compile(r"\s*+")


def normalize(text: str, limit: int = MAX_TEXT) -> str:
    """Normalize ``text`` for storage: valid Unicode without control characters, at most ``limit`` characters.

    Control characters except tabs and line ends become their visible symbols (NUL: U+2400), a lone surrogate becomes
    U+FFFD, and everything else stays: soft hyphens, joiners, zero-width spaces, byte-order and directional marks.
    """
    if len(text) > limit:
        head = max(0, limit - 40)  # room for the remark, so that stored text is not cut again when it is read
        text = f"{text[:head]}… [{len(text) - head} characters cut]"
    if text.isprintable():  # true for most single lines, and much faster
        return text
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # joins surrogate pairs
    return text.translate(_CONTROLS) if _CONTROL.search(text) else text


def printable(text: str) -> str:
    """Escape the characters of ``text`` that a terminal would act on, such as ``\\x1b``, or not show at all."""
    return _EXECUTED.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def without_invisible(text: str) -> str:
    """Drop invisible characters that can hide words from a reader but not from a language model."""
    return text if text.isascii() else _HIDDEN.sub("", text)


def html_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table for a notebook. Everything in it is escaped."""

    def cells(tag: str, each: Iterable[object]) -> str:
        style = ' style="text-align: left"'
        return "".join(f"<{tag}{style}>{html.escape(printable(str(cell)))}</{tag}>" for cell in each)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>" if body else ""
    return f"<p><b>{html.escape(printable(title))}</b></p><table>{head}<tbody>{body}</tbody></table>"


def invisible(text: str) -> str:
    """The first character of ``text`` that a reader of a name cannot see, as ``U+200B``; empty if there is none."""
    match = None if text.isprintable() else _INVISIBLE.search(text)
    return "" if match is None else f"U+{ord(match[0]):04X}"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of ``text``: 3.5 ASCII characters a token, two of Cyrillic, Arabic and their like, one of
    every other script, such as Chinese or Thai.
    """
    plain = len(text.encode("ascii", "ignore"))
    others, size = len(text) - plain, len(text.encode("utf-8", "surrogatepass")) - plain
    wide = size - 2 * others  # characters of three bytes; one of four (an emoji) counts as one and a half
    return math.ceil(plain / 3.5 + (others - wide) / 2 + wide)


def cut(text: str, max_tokens: int) -> str:
    """Cut the middle of ``text`` so that its estimate is at most ``max_tokens``; the text says how much is left out."""
    if estimate_tokens(text) <= max_tokens:
        return text
    marker = f" [… {len(text)} characters left out …] "
    room = max_tokens - estimate_tokens(marker)
    if room < 2:
        return text[: _fitting(text, max_tokens)]
    head, tail = _fitting(text, room // 2), _fitting(text[::-1], room // 2)
    left_out = len(text) - head - tail
    return f"{text[:head]}{marker.replace(str(len(text)), str(left_out), 1)}{text[len(text) - tail :]}"


def short_number(number: float) -> str:
    """``950``, ``12.3k``, ``1.2M``."""
    if number >= 1_000_000:
        return f"{number / 1_000_000:.1f}M"
    return f"{number / 1_000:.1f}k" if number >= 10_000 else f"{number:,.0f}"


def middle_cut(text: str, limit: int = 160) -> str:
    """``text`` on one line, cut in its middle if it is longer than ``limit``: the end often decides."""
    line = " ".join(text.split())
    half = (limit - 3) // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def _fitting(text: str, max_tokens: int) -> int:
    """How many characters at the start of ``text`` are at most ``max_tokens``."""
    lengths = range(1, min(len(text), int(3.5 * max_tokens)) + 1)
    return bisect.bisect_right(lengths, max_tokens, key=lambda length: estimate_tokens(text[:length]))


def without_thoughts(text: str, fields: Collection[str] = ()) -> tuple[str, str]:
    """Split an answer into the answer itself and the thought that a reasoning model wrote into it.

    A thought starts at the start of a line with a tag such as ``<think>`` and ends at the closing tag; without a start,
    everything before the closing tag is the thought. A thought that does not end is all the rest of the text, because
    the model was cut off before its answer. Tags inside a sentence, a code block, a JSON value or an XML element are
    text, and so are those in a field of dspy's format (``[[ ## name ## ]]``) except at its very start. A text
    without a thought is returned as it is.

    Args:
        text: Any text.
        fields: Names of tags that are fields of the answer, as in dspy's ``XMLAdapter``.
    """
    marks = [mark for mark in _THOUGHT_MARK.finditer(text) if _kind(mark) not in fields]
    last_end = {_kind(mark): mark.start() for mark in marks if mark["end"]}
    last_fence = max((mark.start() for mark in marks if mark["fence"]), default=0)
    rest, thoughts = list[str](), list[str]()
    start = mention = None
    fence, in_field, done = "", False, 0
    said, value_end = _upcoming(text, 0) if marks else (0, 0)
    for mark in marks:
        inside = in_field or mark.start() < value_end or (fence and mark.start() < last_fence)
        if start is not None:
            if mark["end"] and (_kind(mark) == _kind(start) or last_end.get(_kind(start), -1) < mark.start()):
                rest.append(text[done : start.start()])
                thoughts.append(text[start.end() : mark.start()])
                start, done = None, mark.end()
                said, value_end = _upcoming(text, done, len(thoughts))
        elif mark["field"]:
            said, in_field = _upcoming(text, mark.end(), 4)[0], True
        elif mark["fence"]:
            fence = "" if fence and mark["fence"].startswith(fence) else fence or mark["fence"]
        elif mark["start"] and (mark.start() <= said or (mark["first"] is not None and not inside)):
            start = mark
        elif mark["start"]:
            mention = mark
        elif not inside and not _is_text(text, mark, mention):
            thoughts += [*rest, text[done : mark.start()]]
            rest, done = [], mark.end()
            said, value_end = _upcoming(text, done, len(thoughts))
        else:
            mention = None
    said_first = start is not None and start.start() <= said and not _MENTION.match(text, start.start("start"))
    if start is not None and not in_field and (said_first or start["last"] is not None):
        rest.append(text[done : start.start()])
        thoughts.append(text[start.end() :])
    else:
        rest.append(text[done:])
    if not thoughts:
        return text, ""
    return "".join(rest).strip(), "\n\n".join(filter(None, (each.strip() for each in thoughts)))


def _kind(mark: re.Match[str]) -> str:
    """The name of an XML tag; every other mark is of one kind, because no model mixes them."""
    tag = mark["start"] or mark["end"] or ""
    return tag.strip("</>").split()[0].lower() if tag.endswith(">") and "|" not in tag else ""


def _is_text(text: str, mark: re.Match[str], mention: re.Match[str] | None) -> bool:
    """Whether a closing tag without a start is text: it ends what a sentence mentions or quotes."""
    before, after = text[max(0, mark.start() - 200) : mark.start()], text[mark.end() : mark.end() + 200]
    line, more, signs = before.rpartition("\n")[2], after.partition("\n")[0], "\"'`*"
    if mention is not None and text.find("\n", mention.end(), mark.start()) < 0:
        return True
    if mark["end"].startswith("Here") or any(line.count(each) % 2 and more.count(each) % 2 for each in '"`'):
        return True
    if mark["first"] is not None:  # as in a regular expression of several lines: '<think>.*?\n</think>'
        return mention is not None and text[mention.start() - 1] == more[:1] in signs
    if mark["last"] is not None:  # "because of a missing </think>"
        return before[-1].isspace() and before[-2:-1].isalnum()
    return (before[-1].isspace() and not more[0].isalnum()) or (before[-1] in f"{signs}([" and more[0] in f"{signs})]")


def _upcoming(text: str, start: int, thoughts: int = 0) -> tuple[int, int]:
    """Where the next word after ``start`` begins, and where the JSON value or XML element that it begins ends."""
    word = _SPACE.match(text, start).end()  # type: ignore[union-attr]
    if thoughts < 4 and (element := _ELEMENT.match(text, word)):
        return word, text.find(f"</{element[1]}>", word)
    try:
        return word, _JSON.raw_decode(text, word)[1] if thoughts < 4 and text.startswith(("{", "["), word) else 0
    except (ValueError, RecursionError):
        return word, 0


def counted(number: int, singular: str, plural: str = "") -> str:
    """Format a count: ``1 lesson``, ``2,000 lessons``. Pass ``plural`` if it is not ``singular`` with an s."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def summary_line(exc: BaseException, limit: int | None = None) -> str:
    """The message of ``exc`` in one line without keys, cut at ``limit`` characters; its type if it has no message."""
    message = redact(" ".join(str(exc).split()))
    return (message if limit is None or len(message) <= limit else f"{message[:limit]}…") or type(exc).__name__


def first_error(exc: pydantic.ValidationError) -> tuple[str, str]:
    """Return the location of the first error (``a.0.b``), and its message with a lower-case first letter."""
    error = exc.errors(include_url=False, include_context=False)[0]
    message = error["msg"].removeprefix("Value error, ")
    return ".".join(map(str, error["loc"])), message[:1].lower() + message[1:]
