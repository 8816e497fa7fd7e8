"""What the model registry says of registered programs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rb_dspy.cli.common import err
from rb_dspy.compile.state import Prompts
from rb_dspy.config import TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.tracking.addresses import registry_options
from rb_dspy.tracking.names import check_name
from rb_dspy.tracking.refused import translated

if TYPE_CHECKING:
    from rb_dspy.tracking.where import Place

_SIGNATURES, _IMPROVED, _HELD_OUT, _FORCED = "rb.signatures", "rb.improved", "rb.held_out", "rb.forced"
_MEASURE, _DATA = "rb.measure", "rb.held_out.data"
_LESSONS, _SCOPE, _COMPILE_RUN = "rb.lessons", "rb.lessons.scope", "rb.compile_run"
_SQLITE = "sqlite:///"
CHAMPION = "champion"
"""The alias of the version that is to be used."""


@dataclass(frozen=True)
class Version:
    """A version of a registered program."""

    name: str
    number: int
    aliases: tuple[str, ...]
    improved: bool
    held_out: str
    """Before, after and the difference, with intervals; empty where it was not measured."""
    measure: str
    """What was measured: only what was measured alike can be compared."""
    data: str
    """Digest of the held-out tasks; empty where it was not measured."""
    summary: str
    forced: str
    """Why it could be made champion although held-out tasks do not say that it is better; else empty."""
    made: str
    run_id: str
    compile_run: str
    """MLflow's run that compiled it; empty where it is not known."""
    lessons: int
    """How many are inside; 0 also where nobody has counted them."""
    scope: str
    """Theirs; empty where it was registered without a bank."""

    @property
    def difference(self) -> str:
        """What changed on held-out tasks, with its interval."""
        return self.held_out.rpartition("difference ")[2]


@contextmanager
def registry(config: TrackingConfig, *, create: bool = False) -> Iterator[Place]:
    """The place of the registry, in use. Raises ``InputError`` where there is none and none is to be made."""
    file = Path(config.uri.removeprefix(_SQLITE))
    if not create and config.uri.startswith(_SQLITE) and not file.exists():
        raise InputError(
            f"{file}: nothing is registered there; rb-dspy programs register NAME FILE{registry_options(config.uri)}"
            " makes it, tracking.uri names another"
        )
    from rb_dspy.tracking.where import Place, quiet

    with err.status("opening MLflow …"):
        place = Place(config)
    with place.using(), quiet():
        yield place


def versions(place: Place, name: str | None = None) -> list[Version]:
    """All versions of ``name``, or of every program, oldest first. Models of others are left out."""
    if name is not None:
        check_name(name)
    with translated("listing programs"):
        of_name = None if name is None else f"name = '{name}'"
        models = {model.name: model for model in _every(place.client.search_registered_models, of_name)}
        if name is not None and name not in models:
            known = ", ".join(model.name for model in _every(place.client.search_registered_models))
            raise InputError(f"no program {name!r} is registered; known: {known or 'none'}")
        found = [
            _version(each, models[each.name].aliases)
            for each in _every(place.client.search_model_versions, of_name)
            if _SIGNATURES in each.tags and each.name in models
        ]
    return sorted(found, key=lambda version: (version.name, version.number))


def _every(search: Callable[..., Any], matching: str | None = None) -> Iterator[Any]:
    """All that ``search`` finds: MLflow answers with one page at a time."""
    token = None
    while True:
        page = search(filter_string=matching, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def version(place: Place, name: str, which: str | None) -> Version:
    """The version with this number or alias; None: the champion and, as long as there is none, the newest."""
    known = versions(place, name)
    wanted = CHAMPION if which is None else which
    for each in known:
        if wanted == str(each.number) or wanted in each.aliases:
            return each
    if which is None and known:
        return known[-1]
    listed = ", ".join([*(str(each.number) for each in known), *(alias for each in known for alias in each.aliases)])
    what = "champion yet" if wanted == CHAMPION else f"version {wanted!r}"
    raise InputError(f"{name}: no {what}; known: {listed or 'none'}")


def champion(place: Place, name: str) -> Version | None:
    """The champion now; None where there is none, or no such program."""
    try:
        known = versions(place, name)
    except InputError:  # the name is new
        return None
    return next((each for each in known if CHAMPION in each.aliases), None)


def kept(version: Version) -> tuple[Prompts, dict[str, Any]]:
    """Prompts and settings of a version, as they were registered."""
    import mlflow

    uri = _uri(version)
    with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder:
        predictors = json.loads(state_file(version, folder).read_text("utf-8"))["predictors"]
    with translated(f"reading {uri}"):
        settings = mlflow.models.get_model_info(uri).flavors["python_function"]["config"]
    prompts = {name: {key: each[key] for key in ("instructions", "demos")} for name, each in predictors.items()}
    return prompts, settings


def state_file(version: Version, folder: str) -> Path:
    """What ``save_program`` wrote of a version, put into ``folder``."""
    return _artifact(version, "state.json", folder)


def report_file(version: Version, folder: str) -> Path | None:
    """What ``Compiled.save`` wrote of a version, put into ``folder``; None where it was not registered with one."""
    return _artifact(version, "compiled.json", folder) if _has(version, "compiled.json") else None


def lessons_file(version: Version, folder: str) -> Path | None:
    """What ``export_jsonl`` wrote of a version's lessons, put into ``folder``; None where it has none."""
    return _artifact(version, "bank.jsonl", folder) if _has(version, "bank.jsonl") else None


def _has(version: Version, name: str) -> bool:
    import mlflow

    uri = f"{_uri(version)}/artifacts"
    with translated(f"reading {uri}"):
        return name in {Path(each.path).name for each in mlflow.artifacts.list_artifacts(artifact_uri=uri)}


def _artifact(version: Version, name: str, folder: str) -> Path:
    import mlflow

    uri = _uri(version)
    with translated(f"reading {uri}"):
        found = f"{uri}/artifacts/{name}"
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=found, dst_path=folder))


def _uri(version: Version) -> str:
    return f"models:/{version.name}/{version.number}"


def _version(found: Any, aliases: Mapping[str, Any]) -> Version:
    tags = found.tags
    return Version(
        name=found.name,
        number=int(found.version),
        aliases=tuple(sorted(alias for alias, number in aliases.items() if str(number) == str(found.version))),
        improved=tags.get(_IMPROVED) == "true",
        held_out=tags.get(_HELD_OUT, ""),
        measure=tags.get(_MEASURE, ""),
        data=tags.get(_DATA, ""),
        summary=found.description or "",
        forced=tags.get(_FORCED, ""),
        made=f"{datetime.fromtimestamp(found.creation_timestamp / 1000, UTC):%Y-%m-%d %H:%M}",
        run_id=found.run_id or "",
        compile_run=tags.get(_COMPILE_RUN, ""),
        lessons=int(tags.get(_LESSONS, 0)),
        scope=tags.get(_SCOPE, ""),
    )
