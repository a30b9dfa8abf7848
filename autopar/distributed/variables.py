"""What the launcher says to the processes that it starts: variables of their environment."""

from __future__ import annotations

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
NUMBER = "JAX_PROCESS_ID"
ARRIVAL = "AUTOPAR_ARRIVAL_FILE"
"""A file that a process makes when it is ready for the others: the launcher names those that are not."""
FAILURE = "AUTOPAR_FAILURE_FILE"
"""A file in which a process that fails says when: others fail for want of it, and may be seen before it."""
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
ACCELERATORS = "JAX_LOCAL_DEVICE_IDS"
