"""A worker of LeNet's training: computes gradients on its own devices, here two virtual ones.

python examples/parameter_server/worker.py 127.0.0.1:6390
"""

from __future__ import annotations

import sys

import jax
import lenet_digits

from autopar import parameter_server as ps

jax.config.update("jax_num_cpu_devices", lenet_digits.WORKER_DEVICES)
with ps.worker(sys.argv[1]) as worker:
    worker.fit(lenet_digits.loss, lenet_digits.batch_of)
print(f"pulled {worker.traffic.pulled_bytes} bytes, pushed {worker.traffic.pushed_bytes}")
