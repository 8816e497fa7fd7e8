"""Does the bank help? The same tasks in the same orders with and without it, with a real language model.

    python experiments/memory/help.py screen --out DIR
    python experiments/memory/help.py run --out DIR [--arms off,bank,truth,again] [--tasks 100] [--orders 8]
    python experiments/memory/help.py report --out DIR

``--model`` and ``--api-base`` as a backbone of the library takes them, the key in the variable that ``--key-env`` says;
by default the embedded model, for which ``--at-once 1`` is best. ``run`` keeps each stream (an arm in an order) as JSON
Lines in DIR, learns into a SQLite bank beside it, and goes on where it was stopped; several processes may share DIR,
each with arms, or orders (``--first``), of its own. ``report`` can be asked for at any time, and prints the tables.

The plan, written before the first run:

- Question: in a stream of single-turn tasks, does an agent with ReasoningBank as shipped solve more than without?
- Tasks: reasoning-gym. ``screen`` asks ``--screened`` (16) tasks of each family, of another seed, without memory
  (``--of``: some families only, to save time; one whose screen is not done is left out). Families solved 10 to 90 %
  stay; of them the ``--families`` (10) whose rate is nearest to one half, ties by name. The stream has ``--tasks``
  (100) tasks of these in equal parts.
- Orders: ``--orders`` (8; 16 where the server's speed, seen in the screen, allows it): one drawn, its reverse, families
  one after the other, the others drawn. All arms do the same.
- Arms: ``off``: nothing is retrieved, judged or learned (``RetrieveConfig(k=0)``, ``learn=False``). ``bank``: the
  program as it comes: one experience is shown, the model judges itself, distils, and all is appended. ``truth``: the
  same with ground truth in place of the model's verdict. ``again``: ``off`` once more, to show what luck does (A/A).
  Token caps and temperatures are the library's own in all arms. Samples are the server's: no seed is sent.
- Primary: the mean difference in success, ``bank`` less ``off``, over all tasks and orders; what broke counts as not
  solved. 95 % interval: two-way clusters (task, order), t with orders - 1 degrees of freedom; beside it a two-way
  paired bootstrap (10,000).
- Verdict: NULL where that interval lies within 5 points of 0, which is the smallest difference of interest; else
  LEARNING or HARM where it lies above or below 0; else UNRESOLVED. With fewer than 100 tasks or 8 orders it is
  exploratory, whatever it says.
- Secondary, by Holm: ``truth`` less ``off``, ``bank`` less ``truth``, ``again`` less ``off``. Described without a test:
  the second half of the stream against the first, families, the judge, what the lessons come to, tokens.
- No look at the outcome decides when the run ends: it ends when all streams are done.

Put in afterwards: ``--of`` and leaving out families whose screen is not done (before any stream of the run was begun);
and, after a run that was cut short, that such streams count as far as both arms came, which makes it exploratory.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from streams import ARMS, chosen_families, run, screen
from told import report

from rb_dspy.config import DEFAULT_MODEL, BackboneConfig

EDGES = (0.1, 0.9)
"""Families of which the model solves less, or more, tell nothing."""


def main() -> None:
    """Screen, run or report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["screen", "run", "report"])
    options.add_argument("--out", type=Path, required=True, help="the folder of all results")
    options.add_argument("--model", default=DEFAULT_MODEL)
    options.add_argument("--api-base", help="address of the server")
    options.add_argument("--key-env", help="the variable that holds the key")
    options.add_argument("--threads", type=int, help="CPU threads of the embedded model")
    options.add_argument("--arms", default=",".join(ARMS), help="some of them, comma-separated")
    options.add_argument("--tasks", type=int, default=100)
    options.add_argument("--orders", type=int, default=8)
    options.add_argument("--first", type=int, default=0, help="the first order to do, for who shares them out")
    options.add_argument("--families", type=int, default=10)
    options.add_argument("--screened", type=int, default=16, help="tasks of a family in the screen")
    options.add_argument("--of", help="families to screen, comma-separated; default: all")
    options.add_argument("--seed", type=int, default=1, help="of the stream; the screen's is 1000 above")
    options.add_argument("--at-once", type=int, default=8, help="streams at the same time")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    backbone = BackboneConfig(
        model=chosen.model, api_base=chosen.api_base, api_key_env=chosen.key_env, threads=chosen.threads
    )
    if chosen.what == "screen":
        of = chosen.of.split(",") if chosen.of else []
        screen(backbone, chosen.out, of=of, each=chosen.screened, seed=chosen.seed + 1000, at_once=chosen.at_once)
    families, rates = chosen_families(chosen.out, chosen.families, EDGES, chosen.screened)
    if chosen.what == "screen":
        print("\n".join(f"{name:26} {solved:3} of {asked}" for name, (solved, asked) in rates.items()))
        print(f"chosen: {', '.join(families)}")
    elif chosen.what == "run":
        run(
            backbone,
            chosen.out,
            arms=chosen.arms.split(","),
            families=families,
            tasks=chosen.tasks,
            orders=range(chosen.first, chosen.orders),
            seed=chosen.seed,
            at_once=chosen.at_once,
        )
    else:
        report(chosen.out, orders=chosen.orders)


if __name__ == "__main__":
    main()
