"""The scheduler of LeNet's training: knows the job, waits for servers and workers, prints what came of it.

    python examples/parameter_server/scheduler.py 127.0.0.1:6390 [FOLDER]

FOLDER is where checkpoints lie; what lies there already is continued.
"""

from __future__ import annotations

import sys

import lenet_digits

from autopar import parameter_server as ps

address, *folder = sys.argv[1:]
result = ps.run_scheduler(lenet_digits.job(folder=folder[0] if folder else None), address)
for update in result.updates[9::10]:
    print(f"step {update.version:3}  loss {update.loss:.4f}  workers {update.workers}")
print(f"accuracy {lenet_digits.accuracy(result.params):.3f}")
