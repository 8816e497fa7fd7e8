"""Which texts an item may be given."""

from __future__ import annotations

from rb_dspy.bank.admission import new_item
from rb_dspy.bank.given import text
from rb_dspy.bank.parts import NewItem
from rb_dspy.errors import InputError
from rb_dspy.schema import MemoryDraft, MemoryItem


def edited(
    scope: str, item: MemoryItem, *, title: str | None, description: str | None, content: str | None
) -> NewItem | None:
    """The item with another text, where None leaves a part as it is; None where that is what it says already.

    Raises ``InputError`` for no text, an empty title or content, and for what is longer than a ``MemoryDraft`` may be.
    """
    given = {"title": title, "description": description, "content": content}
    texts = {name: getattr(item, name) if said is None else text(name, said) for name, said in given.items()}
    draft = MemoryDraft(**texts)
    for name, said in texts.items():
        if (length := len(said.strip())) > (most := len(getattr(draft, name))):
            raise InputError(f"item {item.id}: {name} of {length:,} characters; expected at most {most:,}: shorten it")
    if not draft.title or not draft.content:
        raise InputError(f"item {item.id}: a title and a content are needed; to take it away, delete it")
    new = new_item(scope, draft, item.id)
    same = (new.title, new.description, new.content) == (item.title, item.description, item.content)
    return None if same else new
