from .off import NoRun as NoRun
from .tracker import Tracker as Tracker
