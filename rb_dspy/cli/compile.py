"""``rb-dspy compile``: better prompts for a program, from tasks, and how much better they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import dspy
import typer
from rich.rule import Rule
from rich.text import Text

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.cli.again import as_argument, options, settings_options
from rb_dspy.cli.bar import CompileBar
from rb_dspy.cli.built import (
    KOption,
    LessonsOption,
    LessonsScopeOption,
    MattsOption,
    Program,
    ProgramOption,
    give_prompts,
    lessons,
    program_for,
    settings_for,
)
from rb_dspy.cli.common import ConfigOption, JsonOption, SetOption, command_name, err, out, print_json
from rb_dspy.cli.scored import in_words, print_diff, print_scores, print_usage
from rb_dspy.cli.tasks import SeedOption, StreamOption, TasksFileOption, chosen_file, compile_streams
from rb_dspy.cli.tracked import CompileTrackOption, run_id, tracker_for, where_to_look
from rb_dspy.compile.identity import named, named_embedder, versions, who
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.stages import Stage, stage_module
from rb_dspy.compile.state import digest, prompts_of, signature_hash
from rb_dspy.config import BackboneConfig, Settings
from rb_dspy.errors import InputError
from rb_dspy.stream import Streams
from rb_dspy.tracking.described import described, described_bank, models
from rb_dspy.tracking.names import check_name, fitting_name
from rb_dspy.tracking.prices import costs

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled

_FOLDERS = Path(".rb") / "compile"


def compile_(
    tasks_file: TasksFileOption = None,
    stream: StreamOption = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", "-n", min=3, help="How many in all; default: all of a file, 40 of a stream."),
    ] = None,
    stage: Annotated[Stage, typer.Option(help="One step, or the whole program.")] = "all",
    optimizer: Annotated[str, typer.Option(help="gepa, miprov2, simba, bootstrap or bootstrap_rs.")] = "gepa",
    budget: Annotated[int, typer.Option(min=1, help="How often a candidate may be run on an example and rated.")] = 100,
    reflection: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Who proposes prompts: a model, or a role; default: the agent.")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the result goes.")] = Path(
        "program.json"
    ),
    folder: Annotated[
        Path | None, typer.Option(help="What a stopped compile goes on from; default: below .rb/compile, by arguments.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="Orders of the tasks in scoring; from 3 on, their spread counts.")
    ] = 1,
    window: Annotated[int | None, typer.Option(min=1, help="Tasks of one example, in stage all.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Examples at the same time.")] = 1,
    seed: SeedOption = None,
    name: Annotated[str | None, typer.Option(help="What it is for, in MLflow; default: the tasks' name.")] = None,
    program_file: ProgramOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: LessonsOption = None,
    scope: LessonsScopeOption = None,
    track: CompileTrackOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Compile the prompts for tasks of yours, and measure them on tasks that were kept apart.

    Stopped, the same command goes on where it was.
    """
    chosen = settings_for(config, set_, matts, k, run__stream=stream, run__seed=seed)
    if name is not None:
        check_name(name, "--name")
    streams = compile_streams(chosen.run, chosen_file(chosen.run, tasks_file, stream), tasks)
    _check_out(out_file)
    program = program_for(chosen)
    if program_file is not None:
        give_prompts(program, program_file, whole=True)
    _check_plan(program, stage, optimizer)
    given: dict[str, Any] = {
        "optimizer": optimizer,
        "stage": stage,
        "budget": budget,
        "seed": chosen.run.seed,
        "orders": orders,
        "window": window,
    }
    title = name or fitting_name(streams.compile.name.partition("/")[0])
    with lessons(chosen, bank, scope) as base:
        proposer = _reflection(chosen, reflection)
        place = folder or _folder(program, streams, base, given, proposer, chosen.bank.embedder)
        tracker = tracker_for(chosen, track, usual=True)
        if not json_:
            _print_head(title, program, streams, given, place)
        try:
            with (
                tracker.compile_run(title, program, streams, reflection=proposer) as run,
                CompileBar(err, budget, phases=not json_) as bar,
            ):

                def on_progress(progress: Progress) -> None:
                    bar.on_progress(progress)
                    run.on_progress(progress)

                from rb_dspy.compile.compile import compile_program  # brings scipy

                compiled = compile_program(
                    program,
                    streams,
                    **given,
                    bank=base,
                    embedder=chosen.bank.embedder,
                    reflection=proposer,
                    folder=place,
                    threads=threads,
                    on_progress=on_progress,
                )
                compiled.save(out_file)
                run.log_compiled(compiled)
        except KeyboardInterrupt:
            told = f"interrupted: what was answered is in {place}; the same command goes on from there"
            err.print(Text(told))
            raise typer.Exit(130) from None
    if json_:
        print_json(_as_json(compiled, out_file, place, run_id(run)))
        return
    _print_result(compiled, program, reflection)
    out.print(Text(f"\nsaved as {out_file}"), soft_wrap=True)
    if run_id(run):
        out.print(where_to_look(chosen.tracking, run), soft_wrap=True)
    again = settings_options(config, set_) + options(matts=matts, k=k)
    keep = [command_name(), "programs register", title, as_argument(out_file), *again, *options(bank=bank, scope=scope)]
    on = options(stream=_stream_to_run(chosen.run.stream, tasks_file))
    use = [command_name(), "run", *on, "--program", as_argument(out_file), *again]
    _print_next(compiled, keep=" ".join(keep), use=" ".join(use))


def _reflection(chosen: Settings, given: str | None) -> Any:
    """The language model that proposes prompts: a role's own, or any model by its name. None: the agent's."""
    if given is None:
        return None
    of_role = next((config for role, config in chosen.backbones.items() if role == given), None)
    return Backbones.from_settings({"agent": of_role or BackboneConfig(model=given)}).lm("agent")


def _folder(
    program: Program, streams: Streams, bank: MemoryBank | None, given: dict[str, Any], proposer: Any, embedder: str
) -> Path:
    """A folder of its own for every compile, so that other arguments never meet what these have left."""
    data = [part.digest for part in (streams.compile, streams.dev, streams.held_out)]
    from_bank = described_bank(bank) if bank is not None else {}
    prompts = digest(prompts_of(program))
    played = program.backbones or dspy.settings.get("rb_dspy_backbones", None) or Backbones()
    run_in = [who(played, proposer), named_embedder(bank, embedder), named(program.environments), versions()]
    made_of = digest([given, data, from_bank, described(program), signature_hash(program), prompts, run_in])
    return _FOLDERS / made_of[:12]


def _check_plan(program: Program, stage: Stage, optimizer: str) -> None:
    """Before MLflow is opened: that there is such an optimizer, and that the program has such a step."""
    from rb_dspy.compile.optimizers import optimizer_named  # brings scipy

    optimizer_named(optimizer)
    stage_module(program.deepcopy(), stage)


def _check_out(path: Path) -> None:
    """Before anything is spent: the result must find a place, and not that of something else."""
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; expected the name of a file")
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise InputError(f"--out {path}: its folder cannot be made: {exc.strerror}; give another") from None
    if not path.exists():
        return
    try:
        kind = str(json.loads(path.read_bytes()).get("format"))
    except (OSError, ValueError, AttributeError):
        kind = ""
    if not kind.startswith("rb_dspy"):
        raise InputError(f"--out {path}: is there, and no program of rb_dspy's; give another name, or move it")


def _print_head(title: str, program: Program, streams: Streams, given: dict[str, Any], place: Path) -> None:
    names = set(models(program.backbones).values())
    out.print(
        Text.assemble(
            (title, "bold"),
            f"  {given['optimizer']} on stage {given['stage']}, {given['budget']} metric calls  ",
            (", ".join(sorted(names)), "dim"),
        )
    )
    parts = streams.compile, streams.dev, streams.held_out
    compile_, dev, held_out = (len(part) for part in parts)
    kinds = ", ".join(str(len({task.template or task.id for task in part})) for part in parts)
    told = f"tasks: {compile_} to compile on, {dev} to choose by, {held_out} held out ({kinds} templates)"
    out.print(Text(told, "dim"))
    out.print(Text(_known(place), "dim"))


def _known(place: Path) -> str:
    """What a folder holds of this compile."""
    if (place / "compiled.json").exists():
        return f"was compiled before: the result is that in {place}"
    try:
        with (place / "answers.jsonl").open("rb") as answers:
            return f"goes on from {place}, which has {sum(1 for _ in answers)} answers"
    except OSError:
        return f"stopped, it goes on from {place}"


def _print_result(compiled: Compiled, program: Program, reflection: str | None) -> None:
    out.print(Rule("scores", align="left", style="dim"))
    print_scores(out, compiled.scores, compiled.measure)
    out.print(Rule("prompts", align="left", style="dim"))
    if compiled.changed:
        print_diff(out, compiled.diff())
    else:
        others = len(compiled.candidates) - 1  # the first is the program as it was
        out.print(f"none has changed: {f'none of {others} others' if others > 0 else 'no other'} was better on dev")
    out.print(Rule("cost", align="left", style="dim"))
    played = models(program.backbones)
    played["reflection"] = reflection or played.get("agent", "")
    print_usage(out, compiled.usage, costs(compiled.usage, played))
    calls = f"{compiled.metric_calls} of {compiled.budget} metric calls, {compiled.seconds:,.0f} s"
    broken = f"; {compiled.broken} broke and count as 0" if compiled.broken else ""
    out.print(Text(f"{calls}{broken}", "dim"))
    if compiled.proposals_failed:
        lost = f"who proposes prompts gave no answer, or nothing new, {compiled.proposals_failed} times"
        out.print(Text(f"{lost}: check that model, or give another as --reflection", "yellow"))


def _stream_to_run(stream: str, file: Path | None) -> str | Path | None:
    """What was compiled on, where ``rb-dspy run`` takes it: named streams, and of files only ``.jsonl``."""
    if file is not None:
        return file if file.suffix == ".jsonl" else None
    return None if stream.endswith(".parquet") else stream


def _print_next(compiled: Compiled, *, keep: str, use: str) -> None:
    """What to do with it. ``keep`` and ``use``: commands that register it, and that run with its prompts."""
    if compiled.improved:
        out.print(Text.assemble("keep and promote it: ", (keep, "bold")), soft_wrap=True)
    elif not compiled.changed and compiled.proposals_failed:
        out.print("what may help: a --reflection that has ideas; the same command with another model compiles anew")
    elif not compiled.changed:
        out.print("what may help: a larger --budget, a stronger model as --reflection, more tasks")
    else:
        said = in_words(compiled.scores.held_out.says)
        out.print(Text.assemble("not shown to be better (", said, "): more tasks, or a larger --budget, may tell"))
    if compiled.changed:
        out.print(Text.assemble("use it: ", (use, "bold")), soft_wrap=True)


def _as_json(compiled: Compiled, path: Path, folder: Path, run: str | None) -> dict[str, Any]:
    held_out = compiled.scores.held_out
    return {
        **compiled.model_dump(mode="json", exclude={"state", "candidates", "prompts_before", "prompts_after"}),
        "improved": compiled.improved,
        "held_out_says": held_out.says,
        "changed": compiled.changed,
        "diff": compiled.diff(),
        "candidates": len(compiled.candidates),
        "saved": path,
        "folder": folder,
        "mlflow_run": run,
    }
