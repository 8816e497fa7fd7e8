"""What a command keeps in MLflow, and how to look at it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rich.text import Text

from rb_dspy.cli.common import err
from rb_dspy.config import Settings, TrackingConfig
from rb_dspy.tracking import Tracker
from rb_dspy.tracking.addresses import without_secrets

_NO_JOBS = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"
"""MLflow's jobs are not for what we keep: eight processes, and without a network their import hangs for good."""


def tracker_for(chosen: Settings, asked: bool | None, *, usual: bool) -> Tracker:
    """A tracker, on or off: as the option says, else as ``[tracking]`` in the settings, else as is ``usual`` here.

    Whoever says where something is to be kept wants it kept.
    Raises ``ConfigError`` for a place that cannot be used, before anything else is done.
    """
    config = chosen.tracking
    on = config.enabled if asked is None else asked
    if on is None:
        on = usual or "tracking" in chosen.model_fields_set
    return opened(config) if on else Tracker(config.model_copy(update={"enabled": False}))


def opened(config: TrackingConfig) -> Tracker:
    """A tracker that is on. Importing MLflow takes seconds, and a new database some more."""
    with err.status("opening MLflow …"):
        return Tracker(config.model_copy(update={"enabled": True}))


def where_to_look(config: TrackingConfig, run: Any = None) -> Text:
    """How to see what was kept: the page of ``run`` on a server, else the command that shows the pages."""
    if config.uri.startswith(("http://", "https://")):
        place = getattr(getattr(run, "run", run), "place", None)
        parts = urlsplit(config.uri)
        page = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/")
        if place is not None:
            page += f"/#/experiments/{place.experiment_id}/runs/{run.id}"
        return Text.assemble("in MLflow: ", (page, "bold"))
    plain = config.uri.startswith("sqlite:") and without_secrets(config.uri) == config.uri
    uri = config.uri if plain else "..."  # others may hold a password
    return Text.assemble("in MLflow: ", (f"{_NO_JOBS} {_mlflow()} ui --backend-store-uri {shlex.quote(uri)}", "bold"))


def run_id(run: Any) -> str | None:
    """MLflow's id of a run; None where it is not kept."""
    return run.id or None


def _mlflow() -> str:
    """How MLflow's own command can be called."""
    if shutil.which("mlflow"):
        return "mlflow"
    beside = Path(sys.executable).with_name("mlflow")
    return min(os.path.relpath(beside), str(beside), key=len) if beside.exists() else "python -m mlflow"
