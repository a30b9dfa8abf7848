"""Parameter servers on Ray: servers hold parameters and optimizer state, workers push gradients."""

from __future__ import annotations

from autopar.parameter_server.launch import Running, run_scheduler, run_server, started, train
from autopar.parameter_server.layout import Touched
from autopar.parameter_server.records import Job, Restore, Result, Traffic, Turn, Update
from autopar.parameter_server.worker import Worker, worker

__all__ = [
    "Job",
    "Restore",
    "Result",
    "Running",
    "Touched",
    "Traffic",
    "Turn",
    "Update",
    "Worker",
    "run_scheduler",
    "run_server",
    "started",
    "train",
    "worker",
]
