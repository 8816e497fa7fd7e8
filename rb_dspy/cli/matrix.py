"""``rb-dspy backbones matrix``: which compiled prompts carry over to which language models."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rb_dspy.backbones import Backbones
from rb_dspy.cli.again import as_argument, options, settings_options
from rb_dspy.cli.built import (
    KOption,
    LessonsOption,
    LessonsScopeOption,
    MattsOption,
    Program,
    give_prompts,
    lessons,
    program_for,
    saved,
    settings_for,
)
from rb_dspy.cli.common import (
    CONFIG_FILE,
    ConfigOption,
    JsonOption,
    SetOption,
    command_name,
    err,
    out,
    print_json,
    settings,
)
from rb_dspy.cli.scored import change, in_words
from rb_dspy.cli.tasks import SeedOption, StreamOption, TasksFileOption, chosen_file, held_out
from rb_dspy.cli.tracked import TrackOption, run_id, tracker_for, where_to_look
from rb_dspy.compile.files import write_json
from rb_dspy.config import BackboneConfig, load_settings
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.stream import TaskStream

if TYPE_CHECKING:
    from rb_dspy.compile.matrix import Matrix


def matrix_command(
    program: Annotated[
        list[str] | None,
        typer.Option("--program", metavar="NAME=FILE", help="A compiled program, or a folder of them by backbone."),
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option("--backbone", metavar="NAME=MODEL", help="A model, or a .toml with \\[backbones]."),
    ] = None,
    tasks_file: TasksFileOption = None,
    stream: StreamOption = None,
    tasks: Annotated[int | None, typer.Option("--tasks", "-n", min=1, help="As many as compile was given.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="All tasks of the file, not its held-out part.")] = False,
    orders: Annotated[int, typer.Option(min=1, help="Orders of the tasks.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Orders at the same time.")] = 1,
    seed: SeedOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: LessonsOption = None,
    scope: LessonsScopeOption = None,
    track: TrackOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Run programs on backbones over held-out tasks, and say which to compile again.

    The tasks are those that `compile` with the same --tasks-file or --stream, -n and --seed kept apart. Every program
    is compared with the one without compiled prompts, on the same backbone. With --track it is a run in MLflow, and
    every cell a run below it.
    """
    chosen = settings_for(config, set_, matts, k, run__stream=stream, run__seed=seed)
    files = {name: Path(value) for name, value in _pairs("--program", program).items()}
    models = _pairs("--backbone", backbone)
    if not models:
        raise InputError("no backbones; name at least one: --backbone NAME=MODEL")
    lms = {name: _backbones(value) for name, value in models.items()}
    file = chosen_file(chosen.run, tasks_file, stream)
    todo = held_out(chosen.run, file, tasks, whole=whole)
    subject = program_for(chosen)
    from rb_dspy.compile.matrix import SEED, matrix  # brings scipy

    if SEED in files:
        raise InputError(
            f"--program {SEED}=...: that is the name of the program without compiled prompts; take another"
        )
    cells = len(lms) * (len(files) + 1)
    with tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder, lessons(chosen, bank, scope) as base:
        apart = todo if file is not None and not whole else None  # named streams have splits of their own
        states = _states(subject, files, lms, Path(folder), apart)
        tracker = tracker_for(chosen, track, usual=False)
        given = {"orders": orders, "seed": chosen.run.seed}
        done = 0
        with (
            tracker.matrix_run(f"matrix {todo.name}", subject, lms, todo, base, params=given) as run,
            err.status("") as status,
        ):

            def tell(name: str, on: str) -> None:
                nonlocal done
                status.update(Text(f"{done} of {cells} done, {len(todo)} tasks each; now {name} on {on} …", "dim"))
                done += 1

            found = matrix(
                subject,
                states,
                lms,
                todo,
                bank=base,
                embedder=chosen.bank.embedder,
                **given,
                threads=threads,
                on_start=tell,
                on_cell=run.on_cell,
            )
            run.log_matrix(found)
    if json_:
        again = [{"program": name, "backbone": on} for name, on in found.to_recompile()]
        print_json({**found.model_dump(mode="json"), "recompile": again, "mlflow_run": run_id(run)})
        _check_any(found)
        return
    _print(found, len(todo), todo.name)
    source = options(**({"tasks-file": tasks_file or file} if tasks_file or file else {"stream": stream}))
    same = [*source, *options(tasks=tasks, seed=seed, matts=matts, k=k, bank=bank, scope=scope)]
    _print_next(found, models, files, None if whole else same, config, set_)
    if run_id(run):
        out.print(where_to_look(chosen.tracking, run), soft_wrap=True)
    _check_any(found)


def _check_any(found: Matrix) -> None:
    """Raise ``InfrastructureError`` where no cell could be run, as ``rb-dspy run`` does where every task broke."""
    if all(cell.error for cell in found.cells):
        last = found.cells[-1]
        raise InfrastructureError(
            f"no cell could be run; the last one, {last.program} on {last.backbone}: {last.error}"
        )


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given or ():
        name, sign, value = pair.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{option} {pair!r}: expected NAME={'FILE' if option == '--program' else 'MODEL'}")
        if name in found:
            raise InputError(f"{option} {pair!r}: the name {name!r} is given twice; names must differ")
        found[name] = value
    return found


def _backbones(value: str) -> Backbones:
    if value.endswith(".toml"):
        return Backbones.from_settings(load_settings(Path(value)).backbones)
    return Backbones.from_settings({"agent": BackboneConfig(model=value)})


def _states(
    program: Program, files: Mapping[str, Path], backbones: Iterable[str], folder: Path, held_out: TaskStream | None
) -> dict[str, Path]:
    """The states in ``files``, as files that hold nothing else; each is tried on the program before anything is run.

    Says so where one was compiled with others than ``held_out`` kept apart.
    """
    from rb_dspy.compile.matrix import state_for  # brings scipy

    found: dict[str, Path] = {}
    for number, (name, path) in enumerate(files.items()):
        each = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not each:
            raise InputError(f"{path}: holds no .json; expected what rb-dspy compile or save_program wrote")
        for backbone in backbones:
            state_for(path, backbone)
        place = folder / str(number)
        place.mkdir()
        for file in each:
            compiled, _ = give_prompts(program.deepcopy(), file, whole=True)
            if compiled is not None and held_out is not None and compiled.hashes.held_out != held_out.digest:
                told = (
                    f"{file}: other tasks than these {len(held_out)} were kept apart when it was compiled (another"
                    " file, -n, --seed or release), so it may have been compiled on some of them"
                )
                err.print(Text(told, "yellow"), soft_wrap=True)
            write_json(place / file.name, saved(file)[0])
        found[name] = place if path.is_dir() else place / path.name
    return found


def _print(found: Matrix, tasks: int, name: str) -> None:
    counts = f"{tasks} tasks, {found.orders} order{'s' if found.orders > 1 else ''}"
    dark = f", {found.left_out} left out: no ground truth" if found.left_out else ""
    out.print(Text.assemble((name, "bold"), f"  {counts}", (dark, "yellow")))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("backbone", "program", "solved", "against seed", "", "judge", "tokens"):
        right = heading in ("solved", "judge", "tokens")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading == "against seed")
    for cell in found.cells:
        names = Text(cell.backbone), Text(cell.program)
        if cell.error or cell.success is None:
            table.add_row(*names, "-", "", Text("could not be run", "red"), "-", f"{cell.tokens:,}")
            continue
        against = (
            ("", Text())
            if cell.difference is None
            else (change(cell.difference), in_words(cell.difference.says, short=True))
        )
        agreed = "-" if cell.judge_agreement is None else f"{cell.judge_agreement:.0%}"
        solved = f"{cell.success.mean:.0%}" + (f" ({cell.broken} broke)" if cell.broken else "")
        table.add_row(*names, solved, *against, agreed, f"{cell.tokens:,}")
    out.print(table)
    for cell in found.cells:
        if cell.error:
            out.print(Text.assemble((f"{cell.program} on {cell.backbone}: ", "bold"), (cell.error, "red")))


def _print_next(
    found: Matrix,
    models: Mapping[str, str],
    files: Mapping[str, Path],
    same: list[str] | None,
    config: Path | None,
    overrides: Iterable[str] | None,
) -> None:
    """``same``: options that compile takes as this command does; None where it would compile on what was measured."""
    errors = {(cell.program, cell.backbone) for cell in found.cells if cell.error}
    again = [pair for pair in found.to_recompile() if pair not in errors]
    if not again:
        return
    told = ", ".join(f"{program} for {backbone}" for program, backbone in again)
    out.print(Text.assemble("\nnot shown to be better than without, so compile again: ", (told, "bold")))
    if same is None:
        out.print(Text("on other tasks than these, or they say nothing any more", "dim"), soft_wrap=True)
        return
    program, backbone = again[0]
    given = files[program]
    there = given if given.is_dir() else Path(program)
    on = _played_by(models[backbone], config, overrides)
    command = [command_name(), "compile", *same, *on, *options(out=there / f"{backbone}.json")]
    out.print(Text.assemble("for example: ", (" ".join(command), "bold")), soft_wrap=True)
    told = f"then --program {as_argument(f'{program}={there}')} takes for each backbone the file of its name"
    if there != given:
        told += f", and for others {there / 'default.json'}: copy {given} there"
    out.print(Text(told, "dim"), soft_wrap=True)


def _played_by(model: str, config: Path | None, overrides: Iterable[str] | None) -> list[str]:
    """Options that let ``model`` play all roles as it did here: nothing of the backbones in the settings is left."""
    others = [each for each in overrides or () if not each.strip().startswith(("backbones.", "backbones="))]
    if not model.endswith(".toml"):
        if "backbones" not in settings(config, others).model_fields_set:
            return settings_options(config, [*others, f"backbones.agent.model={model}"])
        played: dict[str, dict[str, Any]] = {"agent": {"model": model}}
    elif config is None and not CONFIG_FILE.exists():
        return settings_options(Path(model), others)
    else:
        loaded = load_settings(Path(model)).backbones
        played = {role: each.model_dump(mode="json", exclude_unset=True) for role, each in loaded.items()}
    return settings_options(config, [*others, f"backbones={_as_toml(played)}"])


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_as_toml(each)}" for name, each in value.items() if each is not None) + "}"
    return json.dumps(value, ensure_ascii=False)
