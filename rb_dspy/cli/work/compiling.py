"""What ``rb-dspy compile`` does: prompts are compiled on some tasks and measured on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.text import Text

from rb_dspy.backbones import Backbones, active
from rb_dspy.bank import MemoryBank
from rb_dspy.cli import apart
from rb_dspy.cli.again import as_argument, options
from rb_dspy.cli.bar import CompileBar
from rb_dspy.cli.built import give_prompts, lessons, program_for, saved
from rb_dspy.cli.common import command_name, err, out, print_json
from rb_dspy.cli.ending import interrupted
from rb_dspy.cli.prompts import prompts_named
from rb_dspy.cli.tasks import chosen_file, compile_streams
from rb_dspy.cli.tracked import run_id, tracker_for, where_to_look
from rb_dspy.cli.work.compiled import as_json, print_head, print_next, print_result
from rb_dspy.compile.identity import named_embedder, versions, who
from rb_dspy.compile.parts import part
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.stages import Stage, stage_module
from rb_dspy.compile.state import digest, prompts_of, signature_hash
from rb_dspy.config import BackboneConfig, Settings
from rb_dspy.errors import InputError
from rb_dspy.matts import BankProgram
from rb_dspy.stream import Streams
from rb_dspy.text import counted
from rb_dspy.tracking.described import described, described_bank
from rb_dspy.tracking.names import check_name, fitting_name

_FOLDERS = Path(".rb") / "compile"


def compile_prompts(
    chosen: Settings,
    *,
    tasks_file: Path | None,
    stream: str | None,
    tasks: int | None,
    stage: Stage,
    optimizer: str,
    budget: int,
    reflection: str | None,
    out_file: Path,
    folder: Path | None,
    orders: int,
    window: int | None,
    threads: int,
    name: str | None,
    program_file: str | None,
    bank: str | None,
    scope: str | None,
    track: bool | None,
    same: list[str],
    json_: bool,
) -> None:
    """The options of the command, of which ``chosen`` holds some; ``same``: those for a command to type next."""
    if name is not None:
        check_name(name, "--name")
    streams = compile_streams(chosen.run, chosen_file(chosen.run, tasks_file, stream), tasks)
    _check_out(out_file)
    program = program_for(chosen)
    with prompts_named(program_file, chosen.tracking) as found:
        if found is not None:
            compiled, _ = give_prompts(program, found.path, whole=True, source=found.name)
            compiled = compiled if found.report is None else saved(found.report)[1]
            _warn_of_known(apart.known_before(compiled, streams.held_out), len(streams.held_out), found.name)
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
        _warn_of_learned(base, streams)
        proposer = _reflection(chosen, reflection)
        place = folder or _folder(program, streams, base, given, proposer, chosen.bank.embedder)
        tracker = tracker_for(chosen, track, usual=True)
        if not json_:
            print_head(title, program, streams, given, place)
        try:
            with (
                tracker.compile_run(title, program, streams, reflection=proposer, params=_params(window)) as run,
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
            raise interrupted(f"what was answered is in {place}; the same command goes on from there") from None
    if json_:
        print_json(as_json(compiled, out_file, place, run_id(run)))
        return
    print_result(compiled, program, proposer)
    out.print(Text(f"\nsaved as {out_file}"), soft_wrap=True)
    if run_id(run):
        out.print(where_to_look(chosen.tracking, run), soft_wrap=True)
    keep = [command_name(), "programs register", title, as_argument(out_file), *same, *options(bank=bank, scope=scope)]
    on = options(stream=tasks_file or chosen.run.stream)
    use = [command_name(), "run", *on, "--program", as_argument(out_file), *same]
    print_next(compiled, keep=" ".join(keep), use=" ".join(use))


def _params(window: int | None) -> dict[str, Any]:
    return {"window": "by the number of tasks" if window is None else window}


def _warn_of_known(known: int, held_out: int, source: str) -> None:
    if known:
        told = (
            f"{source}: {known} of the {counted(held_out, 'held-out task')} it was compiled on, or chosen by, so before"
            " and after both look better than they are; with the --seed and the tasks of that compile they stay apart"
        )
        err.print(Text(told, "yellow"), soft_wrap=True)


def _warn_of_learned(bank: MemoryBank | None, streams: Streams) -> None:
    if bank is None:
        return
    learned = bank.seen_tasks()
    known = sum(task.id in learned for task in streams.held_out)
    if known:
        told = (
            f"the bank has learned from {known} of the {counted(len(streams.held_out), 'held-out task')}: no task is"
            " shown its own lessons, but those of its kind help others; a bank that has not seen them measures better"
        )
        err.print(Text(told, "yellow"), soft_wrap=True)


def _reflection(chosen: Settings, given: str | None) -> Any:
    """The language model that proposes prompts: a role's own, or any model by its name. None: the agent's."""
    if given is None:
        return None
    of_role = next((config for role, config in chosen.backbones.items() if role == given), None)
    return Backbones.from_settings({"agent": of_role or BackboneConfig(model=given)}).lm("agent")


def _folder(
    program: BankProgram, streams: Streams, bank: MemoryBank | None, given: dict[str, Any], proposer: Any, embedder: str
) -> Path:
    """A folder of its own for every compile, so that other arguments never meet what these have left."""
    data = [part.digest for part in (streams.compile, streams.dev, streams.held_out)]
    from_bank = described_bank(bank) if bank is not None else {}
    prompts = digest(prompts_of(program))
    played = program.backbones or active()
    run_in = [who(played, proposer), named_embedder(bank, embedder), part(program.environments).name, versions()]
    made_of = digest([given, data, from_bank, described(program), signature_hash(program), prompts, run_in])
    return _FOLDERS / made_of[:12]


def _check_plan(program: BankProgram, stage: Stage, optimizer: str) -> None:
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
    except (OSError, ValueError, AttributeError, RecursionError):
        kind = ""
    if not kind.startswith("rb_dspy"):
        raise InputError(f"--out {path}: is there, and no program of rb_dspy's; give another name, or move it")
