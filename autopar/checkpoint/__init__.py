"""checkpoint: what a job needs to go on elsewhere, on disk: its state, the position in its data, its plan, its step.

Over orbax. Arrays are stored as what they are, whatever mesh and placement they had, so they are read into any other.
"""

from autopar.checkpoint.checkpoints import Checkpoints as Checkpoints
from autopar.checkpoint.checkpoints import Restored as Restored
