"""Programs in MLflow's model registry: register, promote, list, load."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import mlflow
import mlflow.pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository

from rb_dspy import plugins
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.matts import BankProgram
from rb_dspy.prompts import read_state, save_program
from rb_dspy.redaction import without_secrets
from rb_dspy.tracking.connection import registry_errors
from rb_dspy.tracking.settings import BackbonesLike, backbone_settings, program_settings

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled

CHAMPION = "champion"
"""The alias of the version that is used by default."""

_KIND, _PROGRAM = "rb.kind", "program"
"""Tag and value of every model and version that rb_dspy registered."""
_SERVED = Path(__file__).with_name("served.py")


@dataclass(frozen=True)
class ProgramVersion:
    """A version of a registered program."""

    name: str
    version: int
    champion: bool
    improved: bool
    """Whether held-out tasks showed it to be better than before its compile."""
    held_out: str
    """Success on held-out tasks before and after; empty if it was not compiled."""
    created: datetime
    step: str
    """What was compiled; empty if nothing was."""
    optimizer: str
    lessons: int
    """Number of lessons that it serves with."""


def check(
    program: BankProgram,
    name: str,
    *,
    bank: MemoryBank | None = None,
    embedder: str = "minilm",
    environments: str | None = None,
    backbones: BackbonesLike | None = None,
) -> dict[str, Any]:
    """The settings to register; see ``Tracker.check``."""
    if not re.fullmatch(r"[\w-][\w -]{0,199}", name):
        raise InputError(f"{name!r:.80}: expected a name of letters, digits, '_', '-' and spaces")
    settings = program_settings(program, environments)
    settings["backbones"] = backbone_settings(backbones if backbones is not None else program.backbones)
    if bank is not None:
        filled, loaded = bank.stats().embedder or bank.embedder.id, plugins.embedder(embedder).id
        if loaded != filled:
            raise InputError(
                f"register: the bank uses the embedder {filled}, but {embedder!r} is {loaded}; pass the bank's"
            )
    return settings | {"embedder": embedder, "scope": bank.scope if bank is not None else name}


def register(
    compiled: Compiled | None, program: BankProgram, name: str, bank: MemoryBank | None, settings: dict[str, Any]
) -> int:
    """Register a new version of ``name`` with the settings from ``check``; see ``Tracker.register``."""
    tags = {_KIND: _PROGRAM, "rb.program": type(program).__name__, "rb.lessons": str(len(bank) if bank else 0)}
    if compiled is not None:
        program = compiled.apply(program.deepcopy())
        tags |= {"rb.improved": str(compiled.improved).lower(), "rb.held_out": str(compiled.held_out)}
        tags |= {"rb.step": compiled.step, "rb.optimizer": compiled.optimizer}
    client = mlflow.MlflowClient()
    with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder, registry_errors(f"registering {name}"):
        artifacts = {"state": f"{folder}/state.json"}
        save_program(program, artifacts["state"])
        if compiled is not None:  # says which tasks the prompts were compiled on
            artifacts["compiled"] = f"{folder}/compiled.json"
            compiled.save(artifacts["compiled"])
        if bank is not None:
            artifacts["bank"] = f"{folder}/bank.jsonl"
            bank.export_jsonl(artifacts["bank"])
        model = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(_SERVED),
            artifacts=artifacts,
            model_config=settings,
            pip_requirements=[f"rb-dspy=={installed('rb-dspy')}", f"mlflow=={installed('mlflow')}"],
        )
        try:  # by the client: log_model(registered_model_name=...) prints what it registers
            client.create_registered_model(name)
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        client.set_registered_model_tag(name, _KIND, _PROGRAM)
        about = tags.get("rb.held_out", "not compiled")
        created = client.create_model_version(
            name, model.model_uri, tags=tags, description=about, model_id=model.model_id
        )
        if compiled is not None and compiled.improved:
            client.set_registered_model_alias(name, CHAMPION, str(created.version))
    return int(created.version)


def promote(name: str, version: int, *, force: bool = False) -> None:
    """Make a version the champion; see ``Tracker.promote``."""
    client = mlflow.MlflowClient()
    with registry_errors(f"promoting {name} version {version}"):
        tags = client.get_model_version(name, str(version)).tags
        if tags.get("rb.improved") != "true" and not force:
            shown = tags.get("rb.held_out") or "not measured"
            raise InputError(
                f"{name} version {version}: held-out tasks do not show an improvement ({shown}); to"
                " promote it anyway, pass force=True (--force)"
            )
        client.set_registered_model_alias(name, CHAMPION, str(version))


def programs(name: str | None = None) -> list[ProgramVersion]:
    """Every version of a program, or of all; see ``Tracker.programs``."""
    if name is not None and "'" in name:
        return []  # no program has such a name
    named = "" if name is None else f" AND name = '{name}'"
    with registry_errors("listing programs"):
        models = mlflow.search_registered_models(filter_string=f"tags.`{_KIND}` = '{_PROGRAM}'{named}")
        champions = {(model.name, str(model.aliases.get(CHAMPION))) for model in models}
        versions = mlflow.search_model_versions(filter_string=f"tags.`{_KIND}` = '{_PROGRAM}'{named}")
        listed = [
            ProgramVersion(
                name=each.name,
                version=int(each.version),
                champion=(each.name, str(each.version)) in champions,
                improved=each.tags.get("rb.improved") == "true",
                held_out=each.tags.get("rb.held_out", ""),
                created=datetime.fromtimestamp(each.creation_timestamp / 1000, UTC),
                step=each.tags.get("rb.step", ""),
                optimizer=each.tags.get("rb.optimizer", ""),
                lessons=int(each.tags.get("rb.lessons", 0)),
            )
            for each in versions
        ]
    return sorted(listed, key=lambda each: (each.name, each.version))


def state(name_or_uri: str, version: int | str | None) -> dict[str, Any]:
    """The prompts of a registered program; see ``Tracker.state``."""
    with _files(name_or_uri, version) as (uri, fetch), registry_errors(f"reading {uri}"):
        return read_state(fetch("artifacts/state.json"))


def load(name_or_uri: str, backbones: BackbonesLike | None, version: int | str | None) -> Any:
    """A registered program as a pyfunc; see ``Tracker.load``."""
    with _files(name_or_uri, version) as (uri, fetch), registry_errors(f"loading {uri}"):
        if fetch(_SERVED.name).read_bytes() != _SERVED.read_bytes():  # MLflow runs this file
            raise InputError(f"{uri}: its {_SERVED.name} is not that of this release of rb_dspy; register it again")
        model = mlflow.pyfunc.load_model(uri)
    if backbones is not None:
        model.unwrap_python_model().use(backbones)
    return model


@contextmanager
def _files(name_or_uri: str, version: int | str | None) -> Iterator[tuple[str, Callable[[str], Path]]]:
    """The URI of a model that rb_dspy registered, and a function that downloads a file of it; nothing is loaded.

    Raises ``InputError`` for any other model, because MLflow runs whatever a model's files name.
    """
    uri = _uri(name_or_uri, version)
    with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:

        def fetch(file: str) -> Path:
            return Path(mlflow.artifacts.download_artifacts(f"{uri.rstrip('/')}/{file}", dst_path=folder))

        with registry_errors(f"reading {uri}"):
            if uri.startswith("models:/"):  # a request to another server would carry MLFLOW_TRACKING_TOKEN
                place = urlsplit(ModelsArtifactRepository.get_underlying_uri(uri))  # type: ignore[no-untyped-call]
                web = place.scheme in ("http", "https", "ftp", "sftp", "mlflow-artifacts")
                if web and place.netloc not in ("", urlsplit(mlflow.get_registry_uri()).netloc):
                    raise InputError(
                        f"{uri}: its files are on another server, {place.hostname}; register it again here"
                    )
            described = fetch("MLmodel")
        try:
            flavor = Model.load(str(described)).flavors["python_function"]
            code = (flavor["loader_module"], Path(flavor["model_code_path"]).name, flavor["code"])
        except Exception:  # noqa: BLE001 (MLflow does not check the file)
            code = ("", "", None)
        if code != ("mlflow.pyfunc.loaders.code_model", _SERVED.name, None):
            raise InputError(f"{uri}: not a program that rb_dspy registered; see `rb-dspy programs list`")
        yield uri, fetch


def _uri(name_or_uri: str, version: int | str | None) -> str:
    """The MLflow URI of a version; of the champion if ``version`` is None."""
    if ":/" in name_or_uri:
        if version is not None:
            raise InputError(f"{name_or_uri}: pass a URI, or a name and a version")
        return name_or_uri
    if version is not None:
        if not str(version).isdecimal():
            raise InputError(f"{name_or_uri}: version {version!r:.40}; expected a number")
        return f"models:/{name_or_uri}/{version}"
    listed = programs(name_or_uri)
    if not listed:
        raise InputError(f"no program {name_or_uri!r} is registered in {without_secrets(mlflow.get_registry_uri())}")
    if not any(each.champion for each in listed):
        newest = listed[-1].version
        raise InputError(
            f"{name_or_uri}: no version is {CHAMPION}; pass a version number (newest: {newest}), or promote one"
        )
    return f"models:/{name_or_uri}@{CHAMPION}"
