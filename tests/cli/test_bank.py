"""``rb-dspy bank``: what it shows, what it changes, and that looking changes nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Experience, MemoryBank, MemoryDraft, Task, Trajectory, TrustConfig, Verdict
from rb_dspy.cli.options import bank_options
from rb_dspy.cli.output import one_line
from rb_dspy.config import BankConfig
from rb_dspy.schema import Step
from rb_dspy.testing import HashEmbedder
from tests.served import lines

OPEN = MemoryDraft(title="Open first", description="When it is shut.", content="Open it, then put it in.")
NEVER = MemoryDraft(title="Never open first", description="When it is shut.", content="Never open it, put it in.")
TENS = MemoryDraft(title="Use tens", description="Mental arithmetic.", content="Round up and subtract the rest.")


def opened(scope: str = "default") -> MemoryBank:
    return MemoryBank.open("rb-bank.sqlite", scope=scope, embedder=HashEmbedder())


def learn(bank: MemoryBank, number: int, *drafts: MemoryDraft, **more: Any) -> Experience:
    task = Task(id=f"t/{number}", instruction=f"Put shirt {number} away.")
    steps = (Step(thought="Hm.", action="open wardrobe", observation="It is open."),)
    rollout = Trajectory(task_id=task.id, steps=steps)
    verdict = Verdict(label="success", reasons="Seen.")
    return bank.append(task, rollout, verdict, drafts, **{"run_id": "monday", "distiller": "[/lm]"} | more)


@pytest.fixture
def filled(cli: Any) -> list[Experience]:
    """Three experiences: the second from a stranger, the third learned under its influence and repeating the first."""
    with opened() as bank:
        first = learn(bank, 1, OPEN)
        second = learn(bank, 2, NEVER, origin="stranger")
        return [first, second, learn(bank, 3, OPEN, TENS, shown=second.items, run_id="tuesday")]


def ok(cli: Any, *args: str) -> str:
    code, out, err = cli("bank", *args)
    assert code == 0, err
    return str(out)


def as_json(cli: Any, *args: str) -> list[dict[str, Any]]:
    return lines(ok(cli, *args, "--json"))


def test_a_bank_is_looked_into(cli: Any, filled: list[Experience]) -> None:
    first, second, third = filled
    for args, parts in (
        (["list"], ["Open first", "Open it, then put it in.", "learned 2 times"]),
        (["list", "--experiences"], [each.id for each in filled]),
        (["show", first.items[0].id], ["Open it, then put it in.", "t/1", "run tuesday"]),
        (["show", third.id], ["Put shirt 3 away.", "rollout 1", "open wardrobe", "Seen.", second.items[0].id]),
        (["search", "Put shirt 1 away."], ["Open first"]),
        (["stats"], ["experiences", "3", "scopes"]),
    ):
        out = ok(cli, *args)
        assert all(part in out for part in parts), (args, out)
    assert [each["title"] for each in as_json(cli, "list", "--last", "1")] == ["Use tens"]


def test_each_source_of_a_lesson_says_what_it_was(cli: Any) -> None:
    with opened() as bank:
        item = learn(bank, 1, OPEN, polarity="failure").items[0]
        learn(bank, 2, OPEN)
    added = as_json(cli, "add", "Close doors", "Close them.")[0]["id"]
    ok(cli, "export", "a.jsonl")
    ok(cli, "import", "a.jsonl", "--own", "--scope", "other")
    for scope in ("default", "other"):
        listed = ok(cli, "list", "--scope", scope)
        assert "failure and success, learned 2 times" in listed
        assert "by hand, yours" in listed
        shown = ok(cli, "show", item.id, "--scope", scope)
        assert "from a failure · task t/1" in shown
        assert "from a success · task t/2" in shown
        assert "by hand · task" in ok(cli, "show", added, "--scope", scope)


def test_the_rollout_that_was_submitted_is_marked(cli: Any) -> None:
    task = Task(id="t/1", instruction="Put shirt 1 away.")
    rollouts = [Trajectory(task_id=task.id, rollout_id=number) for number in "012"]
    with opened() as bank:
        learned = bank.append(task, rollouts, [Verdict(label="failure")] * 3, [], submitted=1)
    shown = ok(cli, "show", learned.id)
    assert "rollout 2 (done, submitted)" in shown
    assert shown.count("submitted") == 1


def test_a_long_lesson_is_cut_between_words(cli: Any) -> None:
    content = " ".join(f"word{number}" for number in range(200))
    ok(cli, "add", "Long", content)
    shown = ok(cli, "list").splitlines()
    text = " ".join(" ".join(shown[1:]).split())
    assert text.endswith("…")
    assert set(text.removesuffix("…").split()) < set(content.split())
    assert one_line("alpha beta gamma", 11) == "alpha beta…"


def test_search_ranks_by_words_or_meaning_and_marks_what_agents_are_not_shown(
    cli: Any, filled: list[Experience]
) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        found = as_json(cli, "search", "round up and subtract", "--unit", "item", "-k", "1", "--mode", mode)
        assert found[0]["items"][0]["title"] == "Use tens", mode
    assert len(as_json(cli, "search", "shirt", "--unit", "experience", "-k", "9")) == 3
    Path("rb.toml").write_text(f"{Path('rb.toml').read_text()}\n[program.retrieve]\nk = 1\n")
    shown = [line for line in ok(cli, "search", "Put shirt 1 away.", "-k", "3").splitlines() if line.startswith("  ")]
    assert ["not shown to agents" in line for line in shown] == [False] + [True] * (len(shown) - 1)
    assert len(shown) > 1
    Path("rb.toml").write_text(f"{Path('rb.toml').read_text()}polarity = 'failure'\n")
    assert ok(cli, "search", "Put shirt 1 away.", "-k", "3").count("not shown to agents") == len(shown)


def test_looking_makes_no_scope_and_no_bank(cli: Any, filled: list[Experience]) -> None:
    for args in (["list"], ["stats"], ["show", "x"], ["search", "x"], ["pending"], ["export", "-"], ["doctor"]):
        code, _, err = cli("bank", *args, "--scope", "nobody")
        assert (code, "nobody" in err) == (6, True), args
    assert as_json(cli, "stats")[0]["scopes"] == ["default"]
    assert cli("bank", "list", "--bank", "missing.sqlite")[0] == 6
    assert not Path("missing.sqlite").exists()


def test_stats_and_reindex_work_without_the_usual_scope(cli: Any) -> None:
    with opened("desk") as bank:
        learn(bank, 1, OPEN)
    assert as_json(cli, "stats")[0]["scopes"] == ["desk"]
    assert as_json(cli, "reindex")[0]["vectors"] == 0


def test_a_lesson_is_added_edited_and_deleted(cli: Any, filled: list[Experience]) -> None:
    (added,) = as_json(cli, "add", "Close doors", "Close them.", "--origin", "anna")
    (edited,) = as_json(cli, "edit", added["id"], "--content", "Close them twice.", "--note", "once fails")
    assert edited["content"] == "Close them twice."
    shown = ok(cli, "show", edited["id"])
    assert "Close them. → Close them twice." in shown
    assert "once fails" in shown
    code, _, err = cli("bank", "show", added["id"])
    assert (code, edited["id"] in err) == (2, True)
    assert as_json(cli, "delete", edited["id"], "--dry-run")[0]["items"] == [edited["id"]]
    ok(cli, "delete", edited["id"])
    assert len(as_json(cli, "list")) == 3


def test_a_deleted_lesson_is_listed_and_brought_back(cli: Any, filled: list[Experience]) -> None:
    assert "no lesson is deleted" in ok(cli, "list", "--deleted")
    item = filled[0].items[0]
    ok(cli, "delete", item.id)
    assert [each["id"] for each in as_json(cli, "list", "--deleted")] == [item.id]
    assert item.id in ok(cli, "list", "--deleted")
    assert "is back" in ok(cli, "undelete", item.id[:8], "--note", "it was right")
    assert "learned 2 times" in ok(cli, "list")
    code, _, err = cli("bank", "undelete", item.id)
    assert (code, "is not removed; nothing to bring back" in err) == (2, True)
    ok(cli, "rollback", "run:monday", "--yes")
    assert as_json(cli, "undelete", filled[0].id)[0]["items"][0]["id"] == item.id


def test_rollback_takes_what_was_learned_under_the_influence(cli: Any, filled: list[Experience]) -> None:
    _, second, third = filled
    code, _, err = cli("bank", "rollback", "origin:stranger")
    assert (code, "--yes" in err) == (2, True), "nobody can answer here"
    (planned,) = as_json(cli, "rollback", "origin:stranger", "--dry-run")
    assert planned["experiences"] == [second.id, third.id]
    assert len(as_json(cli, "list")) == 3
    (kept,) = as_json(cli, "rollback", "origin:stranger", "--keep-descendants", "--dry-run")
    assert kept["experiences"] == [second.id]
    ok(cli, "export", "before.jsonl")
    assert "removed: 2 experiences" in ok(cli, "rollback", "origin:stranger", "--yes")
    assert [each["title"] for each in as_json(cli, "list")] == ["Open first"]
    ok(cli, "import", "before.jsonl", "--own", "--scope", "other")
    ok(cli, "rollback", "origin:stranger", "--keep-descendants", "--yes", "--scope", "other")
    assert [each["title"] for each in as_json(cli, "list", "--scope", "other")] == ["Open first", "Use tens"]


def test_purge_deletes_for_good(cli: Any, filled: list[Experience]) -> None:
    assert cli("bank", "purge", filled[1].id)[0] == 2
    assert as_json(cli, "purge", filled[1].id, "--yes")[0]["experiences"] == [filled[1].id]
    assert b"Never open first" not in Path("rb-bank.sqlite").read_bytes()


def test_a_text_can_be_purged_without_standing_in_a_command(
    cli: Any, filled: list[Experience], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("put it in.\n"))
    assert len(as_json(cli, "purge", "--text", "-", "--yes")[0]["items"]) == 2
    assert "no experience, lesson or pending rollout contains the text" in ok(
        cli, "purge", "--text", "put it in.", "--yes"
    )
    assert b"put it in." not in Path("rb-bank.sqlite").read_bytes()
    assert cli("bank", "purge", "--yes")[0] == cli("bank", "purge", "--text", "x", "--yes")[0] == 2


def test_export_and_import_move_a_scope(cli: Any, filled: list[Experience]) -> None:
    assert as_json(cli, "export", "a.jsonl")[0]["experiences"] == 3
    assert ok(cli, "export", "-") == Path("a.jsonl").read_text()
    for new in (3, 0):
        (done,) = as_json(cli, "import", "a.jsonl", "--bank", "b.sqlite", "--origin", "desk")
        assert (done["experiences"], done["new"]) == (3, new)
    assert as_json(cli, "list", "--bank", "b.sqlite")[0]["provenances"][0]["origin"] == "desk"
    Path("a.jsonl").write_text("{}\n")
    assert cli("bank", "import", "a.jsonl", "--bank", "d.sqlite")[0] == 2
    assert not Path("d.sqlite").exists()


def test_a_bank_is_copied_with_its_history(cli: Any, filled: list[Experience]) -> None:
    ok(cli, "delete", filled[1].items[0].id)
    with opened("other") as bank:
        learn(bank, 1, TENS)
    (done,) = as_json(cli, "copy", "rb-bank.sqlite", "new.sqlite")
    assert done["experiences"] == {"default": 3, "other": 1}
    for bank in ("rb-bank.sqlite", "new.sqlite"):
        assert as_json(cli, "list", "--bank", bank) == as_json(cli, "list")
        assert as_json(cli, "list", "--deleted", "--bank", bank)[0]["id"] == filled[1].items[0].id
    assert "3 experiences of scope default" in ok(cli, "copy", "new.sqlite", "one.sqlite", "--scope", "default")
    out = ok(cli, "copy", "rb-bank.sqlite", "one.sqlite")  # as after Ctrl-C between the scopes
    assert "1 experience of scope other copied" in out
    assert "there already: scope default" in out
    (again,) = as_json(cli, "copy", "rb-bank.sqlite", "one.sqlite")
    assert (again["experiences"], again["skipped"]) == ({}, ["default", "other"])
    with MemoryBank.open("one.sqlite", scope="other", embedder=HashEmbedder()) as bank:
        bank.add("New", "Something else.")
    code, _, err = cli("bank", "copy", "rb-bank.sqlite", "one.sqlite")
    assert (code, "is not empty, and differs" in err) == (2, True)


def test_a_bank_is_backed_up_and_restored(cli: Any, filled: list[Experience]) -> None:
    ok(cli, "backup", "copy.sqlite")
    assert cli("bank", "backup", "copy.sqlite")[0] == 2
    ok(cli, "rollback", "run:monday", "--yes")
    (restored,) = as_json(cli, "restore", "copy.sqlite")
    assert Path(restored["moved_aside"]).exists()
    assert len(as_json(cli, "list")) == 3


def test_doctor_finds_nothing_in_a_sound_bank(cli: Any, filled: list[Experience]) -> None:
    assert as_json(cli, "doctor") == []
    assert "1 scope" in ok(cli, "doctor")


def test_another_embedder_is_an_error_that_names_the_setting(cli: Any, filled: list[Experience]) -> None:
    text = Path("rb.toml").read_text().replace('"hash"', '"minilm"')
    Path("rb.toml").write_text(text)
    code, _, err = cli("bank", "search", "shirt")
    assert (code, "bank.embedder" in err) == (6, True)
    assert cli("bank", "list")[0] == 0, "nothing is embedded"


def test_a_bank_is_named_so_that_a_command_can_be_pasted() -> None:
    url = "postgresql://ann@host:5432/db?host=/run/pg"
    for given, expected in (
        (BankConfig(), ""),
        (BankConfig(url="my bank.sqlite", scope="a b"), " --bank 'my bank.sqlite' --scope 'a b'"),
        (BankConfig(url=url), f" --bank '{url}'"),
        (BankConfig(url="postgresql://ann:s3/cret@host/db"), ' --bank "$RB_DSPY_BANK__URL"'),
        (BankConfig(url="postgresql://ann:s3cret@host/db", scope="x"), ' --bank "$RB_DSPY_BANK__URL" --scope x'),
        (BankConfig(url="postgresql://host/db?password=s3cret"), ' --bank "$RB_DSPY_BANK__URL"'),
    ):
        assert bank_options(given) == expected


def test_passwords_are_not_printed(cli: Any) -> None:
    url = "postgresql://anna:hunter2@127.0.0.1:1/lessons"
    code, out, err = cli("bank", "list", "--bank", url)
    assert (code, "hunter2" in out + err) == (6, False)
    code, out, err = cli("config", "bank.url", "--set", f"bank.url={url}")
    assert (code, "hunter2" in out + err) == (0, False)


def test_a_text_that_a_terminal_would_execute_is_escaped(cli: Any) -> None:
    hostile = "Clear \x1b]0;owned\x07 \u202e \x9b2J [/red]"
    with opened() as bank:
        learn(bank, 1, MemoryDraft(title=hostile, description=hostile, content=hostile), note=hostile)
    item = as_json(cli, "list")[0]["id"]
    for args in (["list"], ["list", "--experiences"], ["show", item], ["search", "clear"], ["delete", item]):
        assert not set(ok(cli, *args)) & set("\x1b\x07\u202e\x9b")


def test_held_lessons_are_listed_with_their_origin_and_decided_on(cli: Any) -> None:
    with MemoryBank.open(
        "rb-bank.sqlite", scope="default", embedder=HashEmbedder(), trust=TrustConfig(origins={"mail:*": "held"})
    ) as bank:
        first, second = learn(bank, 1, OPEN, NEVER, origin="mail:ann").items
        learn(bank, 2, TENS)
    listed = ok(cli, "list", "--held")
    assert "Open first  from mail:ann" in listed
    assert "Use tens" not in listed
    assert "success, held" in ok(cli, "list")
    assert [(each["name"], each["lessons"], each["held"]) for each in as_json(cli, "origins")] == [
        ("mail:ann", 2, 2),
        ("", 1, 0),
    ]
    assert "mail:ann learned, one place" in " ".join(ok(cli, "origins").split())
    assert "approved: Open first" in ok(cli, "approve", first.id)
    assert "removed: 1 lesson" in ok(cli, "reject", second.id)
    assert "no lesson is held" in ok(cli, "list", "--held")
    assert [each["level"] for each in as_json(cli, "list")] == ["owner", "learned"]


def test_no_text_of_a_lesson_looks_like_a_line_of_ours(cli: Any) -> None:
    forged = MemoryDraft(
        title="Note\nm0123456789abcdef0123  Refund limit  success, yours",
        description="",
        content="Use it.\n\nfrom a success · task x · experience e · from user",
    )
    with opened() as bank:
        experience = learn(bank, 1, forged, distiller="gpt\nfrom a success · from user", origin="mail:x")
    listed, shown = ok(cli, "list"), ok(cli, "show", experience.items[0].id)
    assert not any(line.startswith("m0123456789abcdef0123") for line in listed.splitlines())
    assert [line for line in shown.splitlines() if line.startswith("from a success")] == [
        line for line in shown.splitlines() if line.startswith("from a success · task t/1")
    ]
