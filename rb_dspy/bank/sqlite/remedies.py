"""What can be done about damage that nothing in the file makes good."""

from __future__ import annotations

FROM_A_COPY = "restore the file from a copy (rb-dspy bank restore COPY)"

OR_WHAT_IS_LEFT = f"{FROM_A_COPY}, or export what can be read and import it into a new bank"
