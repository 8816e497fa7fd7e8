"""Exceptions in words: one line each, whatever was raised."""

import pydantic
import pytest

from rb_dspy.errors import InputError
from rb_dspy.wording import counted, first_line, first_misfit, one_line, what_broke


class Shelf(pydantic.BaseModel):
    books: list[int]
    label: str = ""

    @pydantic.field_validator("label")
    @classmethod
    def _check_label(cls, value: str) -> str:
        raise ValueError("Labels are full")


def misfit_of(given: object) -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as found:
        Shelf.model_validate(given)
    return found.value


def test_one_is_not_several() -> None:
    assert [counted(number, "lesson") for number in (0, 1, 2_000)] == ["0 lessons", "1 lesson", "2,000 lessons"]
    assert [counted(number, "pass", "passes") for number in (1, 2)] == ["1 pass", "2 passes"]


@pytest.mark.parametrize(
    ("exc", "plain", "with_kind"),
    [
        (ValueError("no\n  number\there"), "no number here", "ValueError: no number here"),
        (ValueError("x" * 12), "xxxxxxxxxxxx", "ValueError: xxxxxxxxxxxx"),
        (ValueError(), "ValueError", "ValueError"),
        (KeyboardInterrupt(" \n "), "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_an_exception_is_one_line(exc: BaseException, plain: str, with_kind: str) -> None:
    assert one_line(exc) == plain
    assert one_line(exc, kind=True) == with_kind


def test_what_is_cut_shows_it_and_the_kind_never_is() -> None:
    exc = ValueError("0123456789")
    assert one_line(exc, 10) == "0123456789"
    assert one_line(exc, 9) == "012345678…"
    assert one_line(exc, 3, kind=True) == "ValueError: 012…"
    assert what_broke(exc, 3) == "ValueError: 012…"


def test_the_first_line_leaves_out_the_others() -> None:
    exc = OSError("404 Not Found\nFor more information, see elsewhere")
    assert first_line(exc) == "404 Not Found"
    assert first_line(exc, kind=True) == "OSError: 404 Not Found"
    assert first_line(OSError()) == first_line(OSError(), kind=True) == "OSError"


def test_an_error_of_ours_needs_no_kind() -> None:
    assert what_broke(InputError("the query is empty;\nexpected some text")) == "the query is empty; expected some text"
    assert what_broke(ZeroDivisionError("by 0")) == "ZeroDivisionError: by 0"


def test_the_first_misfit_is_told_with_its_place() -> None:
    misfit = first_misfit(misfit_of({"books": [1, "two"], "label": "B"}))
    assert (misfit.place, misfit.type, misfit.input) == ("books.1", "int_parsing", "two")
    assert misfit.why == "input should be a valid integer, unable to parse string as an integer"
    assert str(misfit) == f"books.1: {misfit.why}"
    missing = misfit_of({})
    assert f"{first_misfit(missing)}" == "books: field required"
    assert f"{first_misfit(missing, 'hall', 'shelf')}" == "hall.shelf.books: field required"
    assert first_misfit(misfit_of({"books": [], "label": "B"})).message == "Value error, Labels are full"
