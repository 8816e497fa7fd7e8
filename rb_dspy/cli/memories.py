"""``rb-dspy memories``: the memory systems that are installed."""

from __future__ import annotations

from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, out, say, table
from rb_dspy.errors import RBError


@options.shared
def memories() -> None:
    """List memory systems: what each stores and shows, and its authors' signal, calls a task, and source."""
    from rb_dspy.memories import Base, MemorySystem
    from rb_dspy.plugins import curator_names, memory, memory_names
    from rb_dspy.steps import Retrieve

    problems = dict[str, str]()
    shown = table("name", "memory")
    for name in memory_names():
        try:
            system: MemorySystem = memory(name, Base(Retrieve()))
        except RBError as exc:
            problems[name] = str(exc)
            emit({"name": name, "problem": str(exc)})
            continue
        about = {"signal": system.signal, "calls": system.calls, "source": system.source}
        emit({"name": name, "stored": system.stores, "shown": system.shows, **about, "problem": ""})
        cost = f"{system.calls} {'call' if system.calls == '1' else 'calls'} a task"
        origin = f"authors' signal: {system.signal}; {cost}; {system.source}"
        shown.add_row(Text(name), Text.assemble(f"{system.stores}; shown: {system.shows}\n", (origin, "dim")))
    out.print(shown)
    for problem in problems.values():
        say((problem, "red"))
    say((f"curators, which go with any of them, as in bank+prune: {', '.join(curator_names())}", "dim"))
    say(("rb-dspy evaluate TASKS --arms none,NAME compares them; ReasoningBank(memory=NAME) uses one", "dim"))
