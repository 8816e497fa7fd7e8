"""Every exception that rb_dspy raises on purpose.

::

    RBError
    ├── InputError                 what the caller passed cannot be used
    │   ├── InvalidTask            an instruction that is empty or too long, or an invalid id
    │   ├── InvalidTrajectory      a foreign trajectory that cannot be read
    │   ├── SignatureChanged       saved prompts were compiled for other signatures than this program has
    │   ├── DspyTooOld             saved by a newer dspy than is installed
    │   └── ConfigError            an unknown key or a bad value in rb.toml, the environment or --set
    ├── MissingDependency          an extra, Java or a model file is missing; says how to get it
    ├── ModelFileError             a model file is damaged, or is not the requested one
    ├── BackboneError              an LM cannot be used at all: key, credit, address, name
    │   └── BudgetSpent            a limit of budget() is reached; what is done is kept
    ├── InfrastructureError        one task's LM call or environment failed, and the task is not judged
    │   └── ContextOverflow        the prompt is longer than the model's context window
    ├── UnparseableOutput          an LM's answer could not be parsed
    ├── RequirementFailed          an evaluation has another verdict than --require names
    └── BankError
        ├── CorruptBank            the file is not a readable bank
        ├── SchemaTooNew           written by a newer rb_dspy
        ├── EmbedderMismatch       the bank belongs to another embedder
        ├── UnknownScope           no such scope in this bank
        ├── InvalidVector          NaN, zero, or of the wrong size
        └── StorageError           disk full, read-only, locked

A message is one line: what is wrong, what was expected, what to do.
"""

from __future__ import annotations

from rb_dspy.redaction import redact
from rb_dspy.text import summary_line


class RBError(Exception):
    """Base of every error that rb_dspy raises on purpose. Its message has no key, even if a server repeats one."""

    exit_code: int = 1
    """Exit status of the command line for this error."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))


class InputError(RBError):
    """The caller passed something invalid."""

    exit_code = 2


class InvalidTask(InputError):
    """A task with an invalid instruction, id or ``env_args``."""


class InvalidTrajectory(InputError):
    """A foreign trajectory that cannot be read as task, thoughts, actions and observations."""


class SignatureChanged(InputError):
    """Saved prompts were compiled for other signatures than the program has; names the predictors and fields."""


class DspyTooOld(InputError):
    """The program was saved by a newer dspy than is installed."""


class ConfigError(InputError):
    """An unknown key or a bad value in the configuration."""


class MissingDependency(RBError):
    """Something must be installed or downloaded first."""

    exit_code = 3


class ModelFileError(RBError):
    """A model file is damaged, or is not the requested one."""

    exit_code = 3


class BackboneError(RBError):
    """A language model that cannot be used at all; the next task would fail, too."""

    exit_code = 4


class BudgetSpent(BackboneError):
    """The calls of a ``budget`` have used what it allows. What is done is kept; a later call continues."""

    exit_code = 7


class InfrastructureError(RBError):
    """One task's LM call or environment failed, so the task is neither success nor failure; or another server failed,
    such as MLflow's.
    """

    exit_code = 5


class ContextOverflow(InfrastructureError):
    """The prompt is longer than the model's context window; a shorter one may fit."""


class UnparseableOutput(RBError):
    """A language model's answer could not be parsed."""

    exit_code = 5


class RequirementFailed(RBError):
    """An evaluation does not have the verdict that was required of it."""

    exit_code = 8


class BankError(RBError):
    """The operation of the bank failed; no stored lesson was lost."""

    exit_code = 6


class CorruptBank(BankError):
    """The file is not a readable bank."""


class SchemaTooNew(BankError):
    """The bank was written by a newer rb_dspy."""


class EmbedderMismatch(BankError):
    """The bank belongs to another embedder."""


class UnknownScope(BankError):
    """The bank has no such scope."""


class InvalidVector(BankError):
    """An embedding that is NaN, zero, or of the wrong size."""


class StorageError(BankError):
    """The disk or the database rejected a read or write: full, read-only, locked."""


def describe_error(exc: BaseException, limit: int | None = None) -> str:
    """``summary_line`` of ``exc``, after its type if it is no ``RBError``."""
    message = summary_line(exc, limit)
    name = type(exc).__name__
    return message if isinstance(exc, RBError) or message == name else f"{name}: {message}"
