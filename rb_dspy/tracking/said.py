"""What MLflow and its databases say of an error, on one line and without the SQL."""

from __future__ import annotations

import re

from rb_dspy.tracking.addresses import without_secrets

_MOST = 300
"""Characters of it."""
# SQLAlchemy's: (driver.Error) what is wrong [SQL: statement] [parameters: values] (Background on this error at: URL)
_ERROR = re.compile(r"\((?:\w+\.)+\w*(?:Error|Exception|Violation|Warning)\w*\)\s*")
_STATEMENT = re.compile(r"\s*(?:\[SQL:|\[parameters:|\(Background on this error at:).*", re.DOTALL)


def of_database(exc: BaseException) -> bool:
    """Whether a database says so: one here, or that of a server, which hands on no more than the text."""
    return _STATEMENT.search(str(exc)) is not None or type(exc.__cause__).__module__.startswith("sqlalchemy.")


def said(exc: BaseException) -> str:
    """What is wrong."""
    text = str(exc)
    if of_database(exc):
        text = _STATEMENT.sub("", _ERROR.split(text)[-1])
    return without_secrets(" ".join(text.split()))[:_MOST] or type(exc).__name__
