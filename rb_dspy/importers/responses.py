"""Items of OpenAI's Responses API: input and output, calls of hosted tools included."""

from __future__ import annotations

from typing import Any

from rb_dspy.content import as_text, join, kind, part_text
from rb_dspy.importers import chat_messages
from rb_dspy.importers.conversation import Conversation

_SKIPPED = (
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "item_reference"),
    *("compaction", "compaction_trigger", "tool_search_output", "additional_tools"),
)
"""Items without words or actions of the agent."""

_ARGUMENTS = ("arguments", "input", "action", "actions", "code", "queries", "operation")


def matches(item: dict[str, Any]) -> bool:
    """Whether this is an item of the Responses API; its messages are chat messages."""
    name = kind(item)
    is_known = name == "reasoning" or name in _SKIPPED or name.endswith(("_call", "_call_output"))
    return is_known and "role" not in item


def read(item: dict[str, Any], conversation: Conversation) -> None:
    """Add an item to the conversation."""
    name = kind(item)
    if name in _SKIPPED:
        return
    if name == "reasoning":
        conversation.think(part_text({key: item.get(key) for key in ("type", "summary", "content")}) or "")
    elif name in ("function_call", "custom_tool_call"):
        chat_messages.read_call(item, conversation)
    elif name.endswith("_output"):
        call_id = item.get("call_id") or item.get("id")  # a local shell's output has its call's id under ``id``
        chat_messages.read_result({**item, "call_id": call_id}, item.get("output"), conversation)
    else:
        _read_hosted(item, conversation)


def _read_hosted(item: dict[str, Any], conversation: Conversation) -> None:
    """Add a call of one of OpenAI's own tools; most have their result in the same item."""
    arguments = next((item[key] for key in _ARGUMENTS if item.get(key) is not None), "")
    call = {**item, "name": item.get("name") or kind(item).removesuffix("_call"), "arguments": arguments}
    results = [as_text(item.get(key)) for key in ("output", "outputs", "results")]
    if item.get("error"):
        results.append(f"[error] {as_text(item['error'])}")
    if kind(item) == "image_generation_call" and item.get("result"):
        results.append("[image]")
    chat_messages.read_call(call, conversation, join(results))
