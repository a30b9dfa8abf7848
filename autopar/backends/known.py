"""Known backends: by the compiler that a device names, and by JAX's platform."""

from __future__ import annotations

from autopar.backends.backend import Backend
from autopar.backends.xla_cpu.backend import XlaCpu
from autopar.backends.xla_gpu import XlaGpu
from autopar.backends.xla_tpu import XlaTpu

UNKNOWN = Backend()
XLA_CPU = XlaCpu()
XLA_GPU = XlaGpu()
XLA_TPU = XlaTpu()

_BY_COMPILER = {backend.name: backend for backend in (XLA_CPU, XLA_GPU, XLA_TPU)}
_BY_PLATFORM = {"cpu": XLA_CPU, "gpu": XLA_GPU, "tpu": XLA_TPU}


def backend_of(compiler: str) -> Backend:
    """The backend of a `cost_models` device's `compiler`; one that knows nothing for other names."""
    return _BY_COMPILER.get(compiler, UNKNOWN)


def backend_on(platform: str) -> Backend:
    """The backend that compiles for JAX's `platform` ("cpu", "gpu", "tpu"); one that knows nothing for others."""
    return _BY_PLATFORM.get(platform, UNKNOWN)
