"""Programs in MLflow's model registry: registered from code, and loaded again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from rb_dspy import plugins
from rb_dspy.backbones.roles import fallbacks
from rb_dspy.bank import MemoryBank
from rb_dspy.compile.result import Compiled
from rb_dspy.compile.state import Prompts, digest, prompts_of, save_program, set_prompts, signature_hash
from rb_dspy.config import ROLES
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Embedder
from rb_dspy.tracking.addresses import registry_options
from rb_dspy.tracking.described import described_bank, settled, told
from rb_dspy.tracking.guard import Guard
from rb_dspy.tracking.names import check_name
from rb_dspy.tracking.origin import COMPILE_RUN, compile_run
from rb_dspy.tracking.promotion import (
    AFTER,
    BEFORE,
    CHAMPION,
    DATA,
    HELD_OUT,
    IMPROVED,
    MEAN,
    MEASURE,
    PROMPT,
    SAME,
    champion_of,
    champion_tags,
    doubt,
    promote,
)
from rb_dspy.tracking.prompts import register_prompts
from rb_dspy.tracking.rebuilt import BackbonesLike, made_by, saved_backbones, settings_of
from rb_dspy.tracking.refused import translated
from rb_dspy.tracking.run import KIND, SOURCE, Run
from rb_dspy.tracking.where import Place, load_mlflow, quiet

_THERE = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")
"""What MLflow says of a name that it has: its own databases and servers, and Databricks'."""
_LESSONS, _SCOPE = "rb.lessons", "rb.lessons.scope"
_ENTRY = Path(__file__).with_name("entry.py")


def register(
    place: Place,
    compiled: Compiled | None,
    program: ReasoningBank | MaTTS,
    name: str,
    *,
    backbones: BackbonesLike | None = None,
    bank: MemoryBank | None = None,
    embedder: str = "minilm",
    environments: str | None = None,
) -> int:
    """A new version of the registered model ``name``; its number. See ``Tracker.register``."""
    check_name(name)
    program = _compiled(compiled, program)
    settings = settings_of(program, environments)
    settings["backbones"] = saved_backbones(backbones if backbones is not None else program.backbones)
    settings |= {"embedder": embedder, "scope": bank.scope if bank is not None else name}
    _check_embedder(bank, embedder)
    # Whatever of it is not MLflow's comes before MLflow is asked.
    described = _described(program, settings, bank)
    found = prompts_of(program)
    tags = {"rb.signatures": signature_hash(program), AFTER: _named(program, found)} | _said_of(compiled, program)
    tags |= {_LESSONS: str(len(bank)), _SCOPE: bank.scope} if bank is not None else {}
    place, parent = place.in_active_run()
    with place.using(), translated(f"registering {name}"), quiet():
        origin = compile_run(place, compiled) if compiled is not None else ""
        from_run = {COMPILE_RUN: origin} if origin else {}
        kind = {KIND: "model", **from_run, **({"mlflow.parentRunId": parent} if parent else {})}
        run_id = place.client.create_run(place.experiment_id, tags=kind, run_name=f"register {name}").info.run_id
        Run(place, Guard(), run_id).params(described)
        model_id = _logged(run_id, name, settings, program, bank, compiled)
        texts = {predictor: prompt["instructions"] for predictor, prompt in found.items()}
        prompts = register_prompts(place, name, texts, note=_summary(compiled), run_id=run_id)
        tags |= {f"{PROMPT}{predictor}": str(number) for predictor, number in prompts.items()} | from_run
        _make_name(place, name)
        champion = champion_tags(place, name)  # before there is a version that an error would not name
        made = place.client.create_model_version(
            name,
            f"models:/{model_id}",
            run_id=run_id,
            tags=tags,
            description=_summary(compiled),
            model_id=model_id,
        )
    version = int(made.version)
    if not doubt(tags, champion):
        promote(place, name, version)
    return version


def load(
    place: Place, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
) -> Any:
    """A registered program as an MLflow pyfunc. See ``Tracker.load``."""
    uri = _uri(name_or_uri, version)
    with place.using(), translated(f"loading {uri}"), quiet():
        if version is None and uri != name_or_uri:
            _check_champion(place, name_or_uri)
        model = load_mlflow().pyfunc.load_model(uri)
    if backbones is not None:
        model.unwrap_python_model().use(backbones)
    return model


def program(
    place: Place, name_or_uri: str, backbones: BackbonesLike | None = None, *, version: int | str | None = None
) -> ReasoningBank | MaTTS:
    """A registered program itself. See ``Tracker.program``."""
    uri = _uri(name_or_uri, version)
    loaded = load(place, name_or_uri, backbones, version=version)
    with translated(f"loading {uri}"):
        model = loaded.unwrap_python_model()
    if not hasattr(model, "program"):
        raise InputError(f"{uri}: no model that rb_dspy registered; expected one of Tracker.register's")
    made: ReasoningBank | MaTTS = model.program()
    return made


def _uri(name_or_uri: str, version: int | str | None) -> str:
    """What MLflow calls a version of a name; the champion, where none is given."""
    if ":/" in name_or_uri:
        if version is not None:
            raise InputError(f"{name_or_uri}: says which version itself; give a name and a version, or this alone")
        return name_or_uri
    if version is None:
        return f"models:/{name_or_uri}@{CHAMPION}"
    if not str(version).isdecimal():
        raise InputError(f"{name_or_uri} version {version!r}: expected a number, as register gave it")
    return f"models:/{name_or_uri}/{version}"


def _check_champion(place: Place, name: str) -> None:
    if champion_of(place, name):
        return
    found = sorted(place.client.search_model_versions(f"name='{name}'"), key=lambda each: int(each.version))
    there = registry_options(place.given)
    if not found:
        raise InputError(
            f"{name}: no version is there to be {CHAMPION}; register one: rb-dspy programs register {name} FILE{there}"
        )
    better = [each for each in found if each.tags.get(IMPROVED) == "true"]
    newest = (better or found)[-1].version
    by_number = f'by its number (version="{newest}", or models:/{name}/{newest})'
    promotion = f"make it {CHAMPION}: rb-dspy programs promote {name} {newest}{there}"
    if better:  # and its alias, or the version that had it, was taken away
        raise InputError(
            f"{name}: no version is {CHAMPION}; version {newest} was shown to be better on held-out tasks: {promotion},"
            f" or load it {by_number}"
        )
    raise InputError(
        f"{name}: no version was shown to be better on held-out tasks, so none is {CHAMPION}; load one {by_number}, or"
        f" {promotion} --force"
    )


def _described(program: ReasoningBank | MaTTS, settings: Mapping[str, Any], bank: MemoryBank | None) -> dict[str, Any]:
    """What was registered, under the names that other runs have for the same."""
    found = settled(program) | told(program) | {"signatures": signature_hash(program)}
    found |= {name: settings[name] for name in ("embedder", "environments")}
    found |= described_bank(bank) if bank is not None else {}
    played = settings["backbones"]
    if not isinstance(played, Mapping):
        return {**found, "backbones": played}
    for role in ROLES:
        giver = next((name for name in fallbacks(role) if name in played), None)
        if giver is not None:  # else it is whatever is configured where the model is loaded
            kept = dict(played[giver])
            found[f"lm.{role}"] = kept.pop("model")
            found |= {f"lm.{role}.{name}": value for name, value in kept.items()}
    return found


def _logged(
    run_id: str,
    name: str,
    settings: Mapping[str, Any],
    program: ReasoningBank | MaTTS,
    bank: MemoryBank | None,
    compiled: Compiled | None,
) -> str:
    """Log the program as a model of the run, which ends with it; the model's id."""
    mlflow = load_mlflow()
    with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder, mlflow.start_run(run_id=run_id, nested=True):
        artifacts = {"state": str(Path(folder) / "state.json")}
        save_program(program, artifacts["state"])
        if compiled is not None:  # says on which tasks these prompts were compiled
            artifacts["compiled"] = str(Path(folder) / "compiled.json")
            compiled.save(artifacts["compiled"])
        if bank is not None:
            artifacts["bank"] = str(Path(folder) / "bank.jsonl")
            bank.export_jsonl(artifacts["bank"])
        from rb_dspy.tracking import saving  # imports MLflow

        logged = mlflow.models.Model.log(
            artifact_path=None,
            name=name,
            flavor=saving,
            tags={"mlflow.source.name": SOURCE},
            python_model=str(_ENTRY),
            artifacts=artifacts,
            made_of=settings,
            pip_requirements=[f"rb-dspy=={installed('rb-dspy')}", f"mlflow=={installed('mlflow')}"],
        )
    return str(logged.model_id)


def _make_name(place: Place, name: str) -> None:
    """Let there be a registered model of this name, to have versions. Raises what MLflow raises where there is none."""
    try:
        place.client.create_registered_model(name)
    except load_mlflow().MlflowException as exc:
        if exc.error_code not in _THERE or place.client.get_prompt(name) is not None:  # a prompt's name is taken, too
            raise


def _compiled(compiled: Compiled | None, program: ReasoningBank | MaTTS) -> ReasoningBank | MaTTS:
    """``program``, if the report is of its prompts; else a copy with them, if it still has those of before the compile.

    Of yet other prompts the report would say that they are better.
    """
    if compiled is None:
        return program
    here = _named(program, prompts_of(program))
    if here == _named(program, compiled.prompts_after):
        return program
    if here == _named(program, compiled.prompts_before):
        copy: ReasoningBank | MaTTS = program.deepcopy()
        compiled.apply(copy)
        return copy
    raise InputError(
        "the program's prompts are neither those that the result of the compile is about nor those that it began with;"
        " give it them with compiled.apply(program), or register it as one that was not compiled, with None"
    )


def _named(program: ReasoningBank | MaTTS, prompts: Prompts) -> str:
    """A name for prompts, as ``program`` has them: demonstrations that were saved and loaded may differ in type."""
    copy = program.deepcopy()
    set_prompts(copy, prompts)
    here = prompts_of(copy)
    return digest({name: here.get(name, each) for name, each in prompts.items()})


def _check_embedder(bank: MemoryBank | None, embedder: str) -> None:
    if bank is None:
        return
    found: Embedder = made_by(embedder) if ":" in embedder else plugins.embedder(embedder)
    filled = bank.stats().embedder or bank.embedder.id
    if found.id != filled:
        raise InputError(
            f"the bank was filled with the embedder {filled}, and {embedder!r} is {found.id}; give the name of the"
            " bank's own as embedder=..."
        )


def _said_of(compiled: Compiled | None, program: ReasoningBank | MaTTS) -> dict[str, str]:
    """What held-out tasks say, as tags of the version; and of what, since one step's score says nothing of the rest."""
    if compiled is None:
        return {IMPROVED: "false"}
    held_out = compiled.scores.held_out
    changed = compiled.prompts_after if compiled.stage == "all" else compiled.changed
    same = {name: prompts for name, prompts in compiled.prompts_before.items() if name not in changed}
    return {
        IMPROVED: "true" if compiled.improved else "false",
        HELD_OUT: str(held_out),
        MEAN: repr(held_out.after.mean),
        DATA: compiled.hashes.held_out,
        MEASURE: compiled.measure,
        BEFORE: _named(program, compiled.prompts_before),
        SAME: _named(program, same),
    }


def _summary(compiled: Compiled | None) -> str:
    if compiled is None:
        return "Not compiled."
    return f"Compiled by {compiled.optimizer}, stage {compiled.stage}. Held-out: {compiled.scores.held_out}."
