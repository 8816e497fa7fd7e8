"""What ``rb-dspy backbones matrix`` does: every program is run on every backbone, and rated."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy
from rich.text import Text

from rb_dspy.backbones import Backbones
from rb_dspy.cli.again import options
from rb_dspy.cli.built import give_prompts, lessons, program_for, saved
from rb_dspy.cli.common import err, out, print_json
from rb_dspy.cli.prompts import NamedPrompts, is_registered, prompts_named
from rb_dspy.cli.tasks import chosen_file, held_out
from rb_dspy.cli.tracked import run_id, tracker_for, where_to_look
from rb_dspy.cli.work.measured import print_head, print_matrix, print_next, size
from rb_dspy.compile.files import write_json
from rb_dspy.config import BackboneConfig, Settings
from rb_dspy.config_file import load_settings
from rb_dspy.errors import BackboneError, InfrastructureError, InputError, MissingDependency
from rb_dspy.matts import BankProgram
from rb_dspy.stream import TaskStream

if TYPE_CHECKING:
    from rb_dspy.compile.matrix import Matrix


def run_matrix(
    chosen: Settings,
    *,
    program: list[str] | None,
    backbone: list[str] | None,
    tasks_file: Path | None,
    stream: str | None,
    tasks: int | None,
    whole: bool,
    orders: int,
    threads: int,
    bank: str | None,
    scope: str | None,
    track: bool | None,
    same: list[str],
    config: Path | None,
    set_: list[str] | None,
    json_: bool,
) -> None:
    """The options of the command, of which ``chosen`` holds some; ``same``: those for a command to type next."""
    named = _pairs("--program", program)
    models = _pairs("--backbone", backbone)
    if not models:
        raise InputError("no backbones; name at least one: --backbone NAME=MODEL")
    lms = {name: _backbones(value) for name, value in models.items()}
    file = chosen_file(chosen.run, tasks_file, stream)
    todo = held_out(chosen.run, file, tasks, whole=whole)
    subject = program_for(chosen)
    from rb_dspy.compile.matrix import SEED, UNCOMPILED, matrix, shown  # brings scipy

    for name in (SEED, UNCOMPILED):
        if name in named:
            raise InputError(
                f"--program {name}=...: that is the name of the program without compiled prompts; take another"
            )
    left = dict.fromkeys(lms, len(named) + 1)
    begun = 0
    with (
        tempfile.TemporaryDirectory(prefix="rb-dspy-") as folder,
        ExitStack() as registered,
        lessons(chosen, bank, scope) as base,
    ):
        given_prompts = {
            name: registered.enter_context(prompts_named(value, chosen.tracking)) or NamedPrompts(Path(value), value)
            for name, value in named.items()
        }
        apart = todo if file is not None and not whole else None  # named streams have splits of their own
        states = _states(subject, given_prompts, lms, Path(folder), apart)
        tracker = tracker_for(chosen, track, usual=False)
        given = {"orders": orders, "seed": chosen.run.seed}
        if not json_:
            print_head(todo, orders, programs=len(named) + 1, backbones=len(lms))
        with (
            tracker.matrix_run(f"matrix {todo.name}", subject, lms, todo, base, params=given) as run,
            err.status("asking each backbone once …") as status,
        ):

            def give_up(on: str, problem: str) -> None:
                left[on] = 0
                err.print(Text.assemble((f"{on} cannot be used: ", "bold"), (problem, "red")))

            def tell(name: str, on: str) -> None:
                nonlocal begun
                begun, left[on] = begun + 1, left[on] - 1
                status.update(Text(f"cell {begun} of {begun + sum(left.values())} …", "dim"))
                if not json_:
                    err.print(Text(f"{shown(name)} on {on}: {size(todo, orders)}", "dim"))

            found = matrix(
                subject,
                states,
                lms,
                todo,
                bank=base,
                embedder=chosen.bank.embedder,
                **given,
                threads=threads,
                on_unusable=give_up,
                on_start=tell,
                on_cell=run.on_cell,
            )
            run.log_matrix(found)
    if json_:
        again = [{"program": name, "backbone": on} for name, on in found.to_recompile()]
        print_json({**found.model_dump(mode="json"), "recompile": again, "mlflow_run": run_id(run)})
        _check_run(found)
        return
    print_matrix(found)
    source = options(**({"tasks-file": tasks_file or file} if tasks_file or file else {"stream": stream}))
    print_next(
        found,
        models,
        named,
        None if whole else [*source, *same],
        config,
        set_,
    )
    if run_id(run):
        out.print(where_to_look(chosen.tracking, run), soft_wrap=True)
    _check_run(found)


def _check_run(found: Matrix) -> None:
    """Raise ``BackboneError`` where a backbone cannot be used, which was told when it was found.

    Raise ``InfrastructureError`` where no cell could be run, as ``rb-dspy run`` does where every task broke.
    """
    lost = found.unusable()
    if lost:
        raise BackboneError(f"{', '.join(lost)}: cannot be used, see above; the others, if any, were run")
    if all(cell.error for cell in found.cells):
        from rb_dspy.compile.matrix import shown  # brings scipy

        last = found.cells[-1]
        raise InfrastructureError(
            f"no cell could be run; the last one, {shown(last.program)} on {last.backbone}: {last.error}"
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
    """Those of a file, or one model. What cannot be used is told when it is asked, as a server that is down is."""
    configs = load_settings(Path(value)).backbones if value.endswith(".toml") else None
    try:
        return Backbones.from_settings(configs or {"agent": BackboneConfig(model=value)})
    except (BackboneError, MissingDependency) as exc:
        return Backbones(agent=_Missing(value, str(exc)))


class _Missing(dspy.BaseLM):
    """In the place of a model that is not here, or that has no key."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model=model)
        self._why = why

    def copy(self, **_: Any) -> Any:
        raise BackboneError(self._why)


def _states(
    program: BankProgram,
    given: Mapping[str, NamedPrompts],
    backbones: Iterable[str],
    folder: Path,
    held_out: TaskStream | None,
) -> dict[str, Path]:
    """The ``given`` states, as files that hold nothing else; each is tried on the program before anything is run.

    Says so where one was compiled with others than ``held_out`` kept apart.
    """
    from rb_dspy.compile.matrix import state_for  # brings scipy

    found: dict[str, Path] = {}
    for number, (name, prompts) in enumerate(given.items()):
        path = prompts.path
        each = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not each:
            raise InputError(f"{path}: holds no .json; expected what rb-dspy compile or save_program wrote")
        for backbone in backbones:
            state_for(path, backbone)
        place = folder / str(number)
        place.mkdir()
        for file in each:
            source = prompts.name if is_registered(prompts.name) else str(file)
            compiled, _ = give_prompts(program.deepcopy(), file, whole=True, source=source)
            kept_apart = prompts.held_out if compiled is None else compiled.hashes.held_out
            if kept_apart and held_out is not None and kept_apart != held_out.digest:
                these = "this one" if len(held_out) == 1 else f"these {len(held_out)}"
                told = (
                    f"{source}: other tasks than {these} were kept apart when it was compiled (another"
                    " file, -n, --seed or release), so it may have been compiled on some of them"
                )
                err.print(Text(told, "yellow"), soft_wrap=True)
            write_json(place / file.name, saved(file)[0])
        found[name] = place if path.is_dir() else place / path.name
    return found
