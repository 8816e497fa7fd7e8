"""Read the answers of every language model alike: without thoughts, and never for longer than an answer is worth."""

from __future__ import annotations

import copy
import functools
import re
from contextlib import suppress
from typing import Any

import dspy
from dspy.clients.call_context import adapter_fallback_scope
from dspy.utils.exceptions import AdapterParseError

from rb_dspy.backbones.lenient import lenient
from rb_dspy.text import counted, without_thoughts

_SHORTEST_LIMIT = 16_000
"""Characters that are always read: a parser needs milliseconds for them."""
_CHARS_PER_TOKEN = 8
"""Tokens of code can be this long. A longer answer did not end where the token limit ended it."""
_MAX_UNCLOSED = 100
"""Brackets without a counterpart. Parsers need seconds for thousands of them, and no answer has so many."""
_HEADER = re.compile(r"^[^\S\n]*+\[\[ ## (\w+) ## \]\]", re.MULTILINE)


class AnswerReader:
    """Mixed into an adapter: removes thoughts before the answer is parsed, and refuses what cannot be an answer.

    An answer of more than ``limit`` characters is refused, because a part of it is not what the model said.
    """

    limit = _SHORTEST_LIMIT
    falls_back = False
    """Whether to ask again with ``dspy.JSONAdapter`` if the answer cannot be parsed, as ``dspy.ChatAdapter`` does."""

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the fields. Raises ``AdapterParseError``, also where the adapter would raise another error."""
        # XMLAdapter writes a field as an element; in other formats an element with a field's name is a thought.
        fields = list(signature.output_fields) if isinstance(self, dspy.XMLAdapter) else []
        answer = without_thoughts(completion, fields)[0].strip()
        # Fields that occur twice are a draft, in a thought of an unknown form, and the answer after it.
        last = {match[1]: match.start() for match in _HEADER.finditer(answer) if match[1] in signature.output_fields}
        answer = answer[min(last.values(), default=0) :]
        problem = _problem(answer, self.limit)
        try:
            if not problem:
                return self._read(signature, answer)
        except AdapterParseError:
            raise
        except (ValueError, RecursionError) as exc:  # of json and its relatives: nested too deeply, a number too long
            problem = f"it cannot be read: {exc}"
        raise AdapterParseError(
            type(self).__name__, signature, answer[: self.limit], f"The answer is unusable: {problem}"
        )

    def _read(self, signature: type[dspy.Signature], answer: str) -> dict[str, Any]:
        try:
            return super().parse(signature, answer)  # type: ignore[misc, no-any-return]
        except AdapterParseError:
            with suppress(AdapterParseError):
                return super().parse(lenient(signature), answer)  # type: ignore[misc, arg-type, no-any-return]
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with adapter_fallback_scope() as progress:
            try:
                return super().__call__(*args, **kwargs)  # type: ignore[misc]
            except AdapterParseError:
                if progress.emitted or not self.falls_back:
                    raise
                options = {name: getattr(self, name) for name in ("use_native_function_calling", "parallel_tool_calls")}
                return reading(None, self.limit // _CHARS_PER_TOKEN, dspy.JSONAdapter(**options))(*args, **kwargs)


def reading(lm: Any, max_tokens: int = 0, adapter: Any = None) -> Any:
    """Return a copy of ``adapter`` that reads answers of ``max_tokens`` as ``AnswerReader``.

    Without ``adapter``, of that of ``dspy.configure``, else of that of ``lm`` (local models), else of dspy's default.
    """
    reader = copy.copy(adapter or dspy.settings.adapter or getattr(lm, "adapter", None) or dspy.ChatAdapter())
    kind: Any = type(reader)
    reader.__class__ = _reader(kind)
    reader.limit = max(_SHORTEST_LIMIT, _CHARS_PER_TOKEN * max_tokens)
    if getattr(reader, "use_json_adapter_fallback", False) and not isinstance(reader, dspy.JSONAdapter):
        reader.falls_back, reader.use_json_adapter_fallback = True, False
    return reader


@functools.cache
def _reader(kind: Any) -> Any:
    """The subclass of ``kind`` that reads answers, with its name, by which ``dspy.streamify`` knows the format."""
    if issubclass(kind, AnswerReader):
        return kind
    reader = type(kind.__name__, (AnswerReader, kind), {})
    for name in {"format", "parse"} & vars(reader).keys():  # dspy reports both to callbacks once more for a subclass
        delattr(reader, name)
    return reader


def _problem(answer: str, limit: int) -> str:
    if len(answer) > limit:
        return f"it has {counted(len(answer), 'character')}, the limit is {limit:,}"
    unclosed = max(answer.count(opened) - answer.count(closed) for opened, closed in ("[]", "{}"))
    return f"{unclosed:,} brackets are not closed" if unclosed > _MAX_UNCLOSED else ""
