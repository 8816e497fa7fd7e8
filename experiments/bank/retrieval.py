"""Which way of retrieving finds what belongs to a task: by meaning (dense), by words (lexical), or both (hybrid).

Two sources in one bank: reasoning-gym families, and TextWorldExpress games (TWC, CookingWorld; needs Java).

    python experiments/bank/retrieval.py [--per-template 6] [--queries 5] [--json FILE]

*Experiences*: the key is a task's instruction; a query is the instruction of a new task; relevant is what is of the
same family (reasoning-gym) or of the same game, and in the last table of the same game's variant. *Items*: lessons
written by hand (``lessons.json`` says how); relevant are the three of the query's family or game.

The instructions of one family share whole sentences, so queries are also asked without the words that four in five of
the family's instructions in the bank share, with their last 12 words only, and as tasks written by hand in other words.

Recall@k is the share of the ``min(k, relevant)`` that could be among the first k. Intervals: 95 %, bootstrap over
families and variants rather than over queries, which are alike within one. p: two-sided sign-flip test over the same
groups of the difference in nDCG@10 from dense; not adjusted for the number of tests.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.index.fusion import fused
from rb_dspy.bank.index.lexical import LexicalIndex
from rb_dspy.bank.index.view import Hit
from rb_dspy.bank.index.word_view import search
from rb_dspy.bank.parts import Unit
from rb_dspy.embedder import minilm
from rb_dspy.plugins import environment_family
from rb_dspy.protocols import Embedder, Vectors
from rb_dspy.schema import ExperienceDraft, MemoryDraft, Step, Task, Trajectory, Verdict

GAMES = ("twc", "cookingworld")
DEPTH = 10
FUSED = 50
"""Rows of each ranking that the stemmed hybrid fuses, as the bank does."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Entry:
    """A text in the bank: ``labels`` are what it is relevant for."""

    text: str
    labels: frozenset[str]


@dataclass(frozen=True)
class Query:
    """``wanted``: the label of what is relevant. ``group``: queries of one group are alike."""

    text: str
    wanted: str
    group: str
    source: str


class Cached:
    """Embeds each text once."""

    def __init__(self, inside: Embedder) -> None:
        self.id, self.dimension = inside.id, inside.dimension
        self._inside = inside
        self._known: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        if new:
            self._known |= dict(zip(new, self._inside.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts])


class Searched:
    """A bank of ``entries``, in the order given, and the ways to search it: each gives row numbers, best first."""

    def __init__(self, entries: Sequence[Entry], unit: Unit, embedder: Embedder) -> None:
        self._entries, self._unit = entries, unit
        self._bank = MemoryBank.open(None, scope="retrieval", embedder=embedder)
        self._bank.append_many(_draft(number, entry, unit) for number, entry in enumerate(entries))
        self._stemmed = LexicalIndex(stemmed=True)
        self._stemmed.add([(number + 1, entry.text) for number, entry in enumerate(entries)])
        self.cpu: dict[str, float] = defaultdict(float)
        self.asked = 0
        """Queries of each way."""
        self.ways: dict[str, Callable[[str], list[int]]] = {
            "dense": lambda text: self._asked(text, "dense"),
            "lexical": lambda text: self._asked(text, "lexical"),
            "lexical, stemmed": lambda text: [hit.seq for hit in self._words(text, DEPTH)],
            "hybrid": lambda text: self._asked(text, "hybrid"),
            "hybrid, stemmed": self._both,
        }

    def labels(self, rows: Iterable[int]) -> list[frozenset[str]]:
        return [self._entries[row].labels for row in rows]

    def relevant(self, label: str) -> int:
        return sum(label in entry.labels for entry in self._entries)

    def search(self, way: str, text: str) -> list[int]:
        self._bank.retrieve(text, 1, unit=self._unit)  # so that no way pays for embedding
        started = time.process_time()
        rows = self.ways[way](text)
        self.cpu[way] += time.process_time() - started
        self.asked += way == "dense"
        return rows

    def _asked(self, text: str, mode: Any, k: int = DEPTH) -> list[int]:
        return [int(hit.task_id) for hit in self._bank.retrieve(text, k, unit=self._unit, mode=mode)]

    def _words(self, text: str, k: int) -> list[Hit]:
        def any_row(rows: Sequence[int]) -> NDArray[np.bool_]:
            return np.ones(len(rows), np.bool_)

        return [Hit(hit.seq - 1, hit.score) for hit in search(self._stemmed.view, text, k, any_row)]

    def _both(self, text: str) -> list[int]:
        near = [Hit(row, 0.0) for row in self._asked(text, "dense", FUSED)]
        return [hit.seq for hit in fused([near, self._words(text, FUSED)], DEPTH)]


def _draft(number: int, entry: Entry, unit: Unit) -> ExperienceDraft:
    """An experience whose indexed text is the entry's; its task id is the row number."""
    title, description, content = entry.text.split("\n", 2) if unit == "item" else (str(number), "", "-")
    task = Task(id=str(number), instruction="-" if unit == "item" else entry.text)
    return ExperienceDraft(
        task=task,
        trajectories=(Trajectory(task_id=task.id, steps=(Step(action="-"),)),),
        verdicts=(Verdict(label="success"),),
        drafts=(MemoryDraft(title=title, description=description, content=content),),
        run_id="retrieval",
    )


def tasks(per_template: int, seed: int) -> list[Task]:
    """New tasks of every family and every game variant, ``per_template`` of each."""
    found: list[Task] = []
    for name in ("reasoning-gym", *GAMES):
        family = environment_family(name)
        found += islice(family.tasks(seed=seed), per_template * len(family.templates()))
    return found


def narrow(task: Task) -> str:
    """The reasoning-gym family, or game and variant without the fold."""
    template = task.template or ""
    return template if task.env == "reasoning-gym" else template.rsplit("/", 1)[0]


def wide(task: Task) -> str:
    """The reasoning-gym family, or the game."""
    return narrow(task).split("/", 1)[0]


def source(label: str) -> str:
    return "TextWorldExpress" if label.split("/", 1)[0] in GAMES else "reasoning-gym"


def fixed_words(known: Sequence[Task]) -> dict[str, set[str]]:
    """For each family or game variant the words that four in five of its instructions share."""
    families: dict[str, list[set[str]]] = defaultdict(list)
    for task in known:
        families[wide(task)].append(set(_words_of(task.instruction)))
    return {
        label: {
            word
            for word, count in Counter(word for words in seen for word in words).items()
            if count >= 0.8 * len(seen)
        }
        for label, seen in families.items()
    }


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def without(text: str, fixed: set[str]) -> str:
    """``text`` less the pieces between white space all of whose words are ``fixed``."""
    return " ".join(piece for piece in text.split() if any(word not in fixed for word in _words_of(piece)))


def asked(fresh: Sequence[Task], known: Sequence[Task], by_hand: dict[str, Any], way: str) -> list[Query]:
    """The queries of one kind; those that are left with fewer than three words are not asked."""
    if way == "other words":
        return [
            Query(text, label, label, source(label)) for label, told in by_hand.items() for text in told["paraphrases"]
        ]
    fixed = fixed_words(known)
    change: dict[str, Callable[[Task], str]] = {
        "as it is": lambda task: task.instruction,
        "fixed words removed": lambda task: without(task.instruction, fixed[wide(task)]),
        "last 12 words": lambda task: " ".join(task.instruction.split()[-12:]),
    }
    queries = [Query(change[way](task), wide(task), narrow(task), source(wide(task))) for task in fresh]
    return [query for query in queries if len(_words_of(query.text)) >= 3]


MEASURES = ("recall@1", "recall@5", "MRR@10", "nDCG@10")


def scores(found: Sequence[bool], relevant: int) -> list[float]:
    """``MEASURES`` of one ranking, ``DEPTH`` long at most."""
    gains = np.zeros(DEPTH)
    gains[: len(found)] = found
    discount = 1 / np.log2(np.arange(2, DEPTH + 2))
    first = next((1 / (rank + 1) for rank, hit in enumerate(found) if hit), 0.0)
    ndcg = float(gains @ discount / discount[: min(relevant, DEPTH)].sum())
    return [float(gains[0]), float(gains[:5].sum() / min(5, relevant)), first, ndcg]


def resampled(values: NDArray[np.float64], groups: Sequence[str]) -> tuple[float, float]:
    """95 % of the mean over ``values``, when groups are drawn with replacement."""
    sums, sizes = _by_group(values, groups)
    draw = np.random.default_rng(0).integers(0, len(sums), (4_000, len(sums)))
    means = sums[draw].sum(axis=1) / sizes[draw].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def sign_flip(differences: NDArray[np.float64], groups: Sequence[str]) -> float:
    """Two-sided p of the mean difference, when each group's sign is a coin's."""
    sums, _ = _by_group(differences, groups)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (20_000, len(sums)))
    beyond = np.abs(signs @ sums) >= abs(sums.sum()) - 1e-12
    return float((beyond.sum() + 1) / (len(signs) + 1))


def _by_group(values: NDArray[np.float64], groups: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    names = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    places = [names[name] for name in groups]
    return np.bincount(places, values).astype(np.float64), np.bincount(places).astype(np.float64)


def report(title: str, searched: Searched, queries: Sequence[Query]) -> list[dict[str, Any]]:
    """Print the table of one kind of query; returns its rows."""
    measured = {
        way: np.array(
            [
                scores(
                    [query.wanted in labels for labels in searched.labels(searched.search(way, query.text))],
                    searched.relevant(query.wanted),
                )
                for query in queries
            ]
        )
        for way in searched.ways
    }
    print(f"\n{title}\n\n| source | queries | way | {' | '.join(MEASURES)} | nDCG@10 - dense | p |")
    print(f"|{'---|' * (len(MEASURES) + 5)}", flush=True)
    rows: list[dict[str, Any]] = []
    sources = list(dict.fromkeys(query.source for query in queries))
    for name in [*sources, "both"] if len(sources) > 1 else sources:
        here = [number for number, query in enumerate(queries) if name in (query.source, "both")]
        groups = [queries[number].group for number in here]
        for way, values in measured.items():
            row: dict[str, Any] = {"title": title, "source": name, "queries": len(here), "way": way}
            for place, measure in enumerate(MEASURES):
                row[measure] = (float(values[here, place].mean()), *resampled(values[here, place], groups))
            if way != "dense":
                difference = values[here, -1] - measured["dense"][here, -1]
                row["difference"] = (float(difference.mean()), *resampled(difference, groups))
                row["p"] = sign_flip(difference, groups)
            rows.append(row)
            cells = [f"{row[measure][0]:.3f} [{row[measure][1]:.2f}, {row[measure][2]:.2f}]" for measure in MEASURES]
            cells += [_signed(*row["difference"]), _small(row["p"])] if "p" in row else ["", ""]
            print(f"| {name} | {len(here)} | {way} | {' | '.join(cells)} |", flush=True)
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> None:
    """nDCG@10 of both sources together, a line for each kind of query."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    print(f"\nnDCG@10, both sources\n\n| | {' | '.join(ways)} |\n|{'---|' * (len(ways) + 1)}")
    for title in dict.fromkeys(row["title"] for row in rows):
        last = {row["way"]: row for row in rows if row["title"] == title}  # the last of a title is both sources
        print(f"| {title} | {' | '.join(f'{last[way][MEASURES[-1]][0]:.3f}' for way in ways)} |")


def _small(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _signed(middle: float, low: float, high: float) -> str:
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    """Draw the tasks, fill the banks, ask."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--per-template", type=int, default=6, help="experiences of each family and variant in the bank"
    )
    options.add_argument("--queries", type=int, default=5, help="new tasks of each family and variant")
    options.add_argument("--json", type=Path, help="write all rows there")
    chosen = options.parse_args()
    by_hand = json.loads(Path(__file__).with_name("lessons.json").read_text(encoding="utf-8"))["families"]
    known, fresh = tasks(chosen.per_template, 1), tasks(chosen.queries, 2)
    embedder = Cached(minilm())
    experiences = Searched(
        [Entry(task.instruction, frozenset({wide(task), narrow(task)})) for task in known], "experience", embedder
    )
    lessons = Searched(
        [Entry("\n".join(one), frozenset({label})) for label, told in by_hand.items() for one in told["lessons"]],
        "item",
        embedder,
    )
    texts = {task.instruction for task in known}
    same = Counter(source(wide(task)) for task in fresh if task.instruction in texts)
    print(
        f"{len(known)} experiences of {len({wide(task) for task in known})} families and games;"
        f" {sum(len(told['lessons']) for told in by_hand.values())} lessons of {len(by_hand)}; new tasks whose very"
        f" instruction is in the bank: {dict(same)} of {dict(Counter(source(wide(task)) for task in fresh))}"
    )
    rows: list[dict[str, Any]] = []
    for kind in ("as it is", "fixed words removed", "last 12 words", "other words"):
        queries = asked(fresh, known, by_hand, kind)
        rows += report(f"experiences; query: {kind}", experiences, queries)
        rows += report(f"items; query: {kind}", lessons, [query for query in queries if query.wanted in by_hand])
    strict = [
        Query(task.instruction, narrow(task), narrow(task), "TextWorldExpress, same variant")
        for task in fresh
        if task.env in GAMES
    ]
    rows += report("experiences of the same variant; query: as it is", experiences, strict)
    summary(rows)
    for unit, searched in (("experiences", experiences), ("items", lessons)):
        each = ", ".join(f"{way} {1000 * seconds / searched.asked:.2f}" for way, seconds in searched.cpu.items())
        print(f"\nCPU ms a query without embedding, {unit}: {each}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
