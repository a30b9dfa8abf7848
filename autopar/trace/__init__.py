"""JAX in: a Python function becomes an OpGraph."""

from autopar.core.graph import CONSTANT as CONSTANT
from autopar.trace.arguments import input_signature as input_signature
from autopar.trace.capture import Capture as Capture
from autopar.trace.capture import Traced as Traced
from autopar.trace.capture import capture as capture
from autopar.trace.capture import graph_of as graph_of
from autopar.trace.capture import trace as trace
from autopar.trace.fingerprint import fingerprint as fingerprint
from autopar.trace.padding import padded_choices as padded_choices
