"""Records a run as people see it in a terminal, as the SVG that the README shows.

python experiments/picture/record.py docs/run.svg [--tasks 2] [--stream twc] [--seed 0]
"""

from __future__ import annotations

import argparse
import io
import os
import re
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from rich.console import Console

from rb_dspy import Backbones, MemoryBank, ReasoningBank, TaskStream, run_stream
from rb_dspy.cli.display import Display
from rb_dspy.cli.summary import print_summary
from rb_dspy.steps.events import listening


def main() -> None:
    """Run and record."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("output")
    options.add_argument("--tasks", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--stream", default="reasoning-gym-small")
    options.add_argument("--template", action="append")
    options.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    chosen = options.parse_args()
    console = Console(record=True, width=108, file=io.StringIO(), force_terminal=True, highlight=False)
    program = ReasoningBank(backbones=Backbones(agent=chosen.model))
    stream = TaskStream.named(chosen.stream, n=chosen.tasks, seed=chosen.seed, templates=chosen.template)
    display = Display(console, len(stream))
    with MemoryBank.open(None, scope="picture") as bank, listening(display.on_event):
        report = run_stream(program, stream, bank, run_id="picture", on_result=display.on_result)
    print_summary(console, report)
    drawn = console.export_svg(title="rb-dspy run")
    # rich's template loads its font from elsewhere; a picture in a repository should not.
    Path(chosen.output).write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    print(f"{chosen.output}: {len(stream)} tasks of {chosen.stream}")


if __name__ == "__main__":
    main()
