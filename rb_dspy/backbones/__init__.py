"""Language models by role: binding, metering, and the engine that runs inside the process."""

from rb_dspy.backbones.ledger import Ledger, Meter, metered, report
from rb_dspy.backbones.roles import Backbones, adapter_for, lm_of
from rb_dspy.backbones.session import session

__all__ = ["Backbones", "Ledger", "Meter", "adapter_for", "lm_of", "metered", "report", "session"]
