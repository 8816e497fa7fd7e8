"""What all values have in common, and the text in them."""

from __future__ import annotations

from typing import Annotated

import pydantic

from rb_dspy.text import visible

Text = Annotated[str, pydantic.AfterValidator(visible)]
"""Text that an agent, an environment or a language model wrote: made storable, never refused."""


class Frozen(pydantic.BaseModel):
    """A value that nobody changes, and that has no fields but its own."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")
