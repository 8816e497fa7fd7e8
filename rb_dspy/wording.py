"""Exceptions and numbers in words. An exception is told in one line, as every message of ``rb_dspy.errors`` is."""

from __future__ import annotations

from typing import Any, NamedTuple

import pydantic

from rb_dspy.errors import RBError


def counted(number: int, what: str, several: str = "") -> str:
    """``1 lesson``, ``2,000 lessons``; ``several``: where that is not ``what`` and an s."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def one_line(exc: BaseException, most: int | None = None, *, kind: bool = False) -> str:
    """What ``exc`` says, in one line and in ``most`` characters of its own; its kind where it says nothing.

    ``kind``: its kind before what it says, for errors whose words alone do not tell what broke.
    """
    said = " ".join(str(exc).split())
    if most is not None and len(said) > most:
        said = f"{said[:most]}…"
    return _with_kind(exc, said) if kind else said or _kind(exc)


def first_line(exc: BaseException, *, kind: bool = False) -> str:
    """The first line of what ``exc`` says, where the others are for who mends the library that raised it."""
    said = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
    return _with_kind(exc, said) if kind else said or _kind(exc)


def what_broke(exc: BaseException, most: int | None = None) -> str:
    """What ``exc`` says, in one line: an error of ours says all there is to say, any other needs its kind."""
    return one_line(exc, most, kind=not isinstance(exc, RBError))


class Misfit(NamedTuple):
    """A value that does not fit a model of pydantic's. As text: ``place: why``."""

    loc: tuple[int | str, ...]
    """Where it stands, as pydantic has it."""
    type: str
    """pydantic's name for what is wrong, as ``missing``."""
    message: str
    """The same for people, a sentence of pydantic's."""
    input: Any
    """What was given."""

    @property
    def place(self) -> str:
        """Where it stands: ``a.0.b``."""
        return ".".join(map(str, self.loc))

    @property
    def why(self) -> str:
        """``message`` as a part of a sentence of ours."""
        return self.message.lower()

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


def first_misfit(exc: pydantic.ValidationError, *within: str) -> Misfit:
    """The first of what does not fit: a message is one line. ``within``: the keys under which the model itself stands.

    Keys and value are as long and as odd as whoever wrote them made them.
    """
    found = exc.errors(include_url=False, include_context=False)[0]
    return Misfit((*within, *found["loc"]), found["type"], found["msg"], found["input"])


def _with_kind(exc: BaseException, said: str) -> str:
    return f"{_kind(exc)}: {said}" if said else _kind(exc)


def _kind(exc: BaseException) -> str:
    return type(exc).__name__
