"""Session files of Claude Code: one entry a line, each with a message of Anthropic's form or about the session."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import kind


def messages(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a session, those of its sub-agents included, in order; other elements as they are.

    Blocks of one message that stand in entries of their own are joined. What the user typed while the agent worked is
    an attachment. Entries about the session (summaries, snapshots, hooks, notices) are skipped.
    """
    if not any(_has_message(entry) for entry in entries):
        return entries
    found: list[dict[str, Any]] = []
    for entry in entries:
        attachment = entry.get("attachment")
        if _has_message(entry):
            message = entry["message"]
        elif isinstance(attachment, dict) and kind(attachment) == "queued_command":
            message = {"role": "user", "content": attachment.get("prompt")}
        elif "role" in entry:
            message = entry
        else:
            continue
        last, parts = found[-1] if found else {}, message.get("content")
        if (
            message.get("id")
            and message["id"] == last.get("id")
            and isinstance(parts, list)
            and isinstance(last["content"], list)
        ):
            last["content"] += parts
        else:
            found.append({**message, "content": [*parts] if isinstance(parts, list) else parts})
    return found


def _has_message(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("message"), dict) and kind(entry) in ("user", "assistant")
