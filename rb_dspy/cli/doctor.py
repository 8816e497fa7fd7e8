"""``rb-dspy doctor``: can everything be used that a run needs?"""

from __future__ import annotations

import platform
import re
import shutil
from importlib.metadata import distributions, requires, version
from pathlib import Path

from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, err, out, table
from rb_dspy.config import Settings
from rb_dspy.errors import BackboneError, CorruptBank, RBError, StorageError, describe_error
from rb_dspy.redaction import without_secrets
from rb_dspy.text import counted

_LEAST_GB = 1.0
"""Free disk space below which banks and logs may soon fail."""


@options.shared
def doctor(bank: options.Bank = None, config: options.Config = None, set_: options.Set = None) -> None:
    """Check Python, extras, models, the bank, MLflow and the disk. Ends with the exit code of the worst problem.

    Each language model is called once.
    """
    chosen = options.settings(config, set_, bank__url=bank)
    shown, problems = table("", "what", "found"), list[RBError]()
    checks = {"python": _python, "extras": _extras, "models": _models, "bank": _bank, "mlflow": _mlflow, "disk": _disk}
    for name, check in checks.items():
        try:
            with err.status(f"checking: {name} …"):
                found, mark = check(chosen), Text("ok", "green")
        except RBError as exc:
            found, mark = describe_error(exc), Text("error", "red")
            problems.append(exc)
        emit({"check": name, "ok": mark.plain == "ok", "found": found})
        shown.add_row(mark, name, Text(found))
    out.print(shown)
    if problems:
        raise max(problems, key=lambda exc: exc.exit_code)


def _python(_: Settings) -> str:
    return f"{platform.python_version()}, rb-dspy {version('rb-dspy')}, dspy {version('dspy')}"


def _extras(_: Settings) -> str:
    """Which extras are installed, and how to get the others."""
    here = {each.name.lower().replace("_", "-") for each in distributions()}
    lacking: dict[str, bool] = {}
    for line in requires("rb-dspy") or ():
        if match := re.match(r"""([\w.-]+).*extra == ['"](\w+)['"]""", line):
            lacking[match[2]] = lacking.get(match[2], False) or match[1].lower().replace("_", "-") not in here
    return ", ".join(f"{extra}: no (pip install 'rb-dspy[{extra}]')" if no else extra for extra, no in lacking.items())


def _models(chosen: Settings) -> str:
    from rb_dspy.cli.models import probe_roles

    roles: dict[str, list[str]] = {}  # those of each model, or of each problem
    broken = False
    for row in probe_roles(chosen):
        broken = broken or bool(row["problem"])
        roles.setdefault(row["problem"] or f"{row['model']}, {row['seconds']:.1f} s", []).append(row["role"])
    found = "; ".join(f"{', '.join(names)}: {text}" for text, names in roles.items())
    if broken:
        raise BackboneError(found)
    return found


def _bank(chosen: Settings) -> str:
    from rb_dspy.cli.bank_change import findings

    url = chosen.bank.url
    if "://" not in url and not Path(url).expanduser().exists():
        return f"no bank at {url} yet; rb-dspy run creates it"
    names, found = findings(url)
    if found:
        raise CorruptBank(f"{counted(len(found), 'error')}; rb-dspy bank doctor lists them with their fixes")
    return f"no errors in {counted(len(names), 'scope')} of {without_secrets(url)}"


def _mlflow(chosen: Settings) -> str:
    from rb_dspy.cli.program import tracker

    if not tracker(chosen, None).config.enabled:
        return "not used; [tracking] in rb.toml, or --track, turns it on"
    import mlflow

    return f"{without_secrets(mlflow.get_tracking_uri())} answers"


def _disk(_: Settings) -> str:
    free = shutil.disk_usage(".").free / 1e9
    if free < _LEAST_GB:
        raise StorageError(f"only {free:.1f} GB are free here; expected at least {_LEAST_GB:.0f} GB: free some")
    return f"{free:,.0f} GB free here"
