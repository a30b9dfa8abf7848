"""Compiling quickly where values are looked at and not what XLA makes: of tiny operators it is most of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from typing import Any

import jax
import pytest

# there is no public default for compiler options but XLA_FLAGS, which is for all tests
from jax._src import (
    compiler,
)
from jax._src.interpreters import mlir

# LLVM and the fusion emitters take three quarters of the time, and come after what is read in an optimised module.
QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
if jax.__version_info__ < (0, 11):
    QUICK["xla_cpu_use_fusion_emitters"] = (
        False  # later versions know nothing else, and not this option
    )

# The same optimised module as users get, of code that runs slowly.
AS_FUSED: dict[str, Any] = {
    name: value for name, value in QUICK.items() if name != "xla_cpu_use_fusion_emitters"
}

# Lowerings in one MLIR context: to make one takes a fourth of what a small operator takes. JAX 0.12 does so, for ten.
LOWERINGS = 50

_options_of: Any = compiler.get_compile_options
_new_context: Any = mlir.make_ir_context


@contextmanager
def compiled_by(options: Mapping[str, Any]) -> Iterator[None]:
    """XLA's CPU compiler has these options by default meanwhile, also for operators that run one by one."""

    def with_options(
        *args: Any, env_options_overrides: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        overrides = {**options, **(env_options_overrides or {})}
        return _options_of(*args, env_options_overrides=overrides, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", with_options)
        patch.setattr(mlir, "make_ir_context", kept(_new_context))
        yield


def kept(make: Callable[[], Any]) -> Callable[[], Any]:
    """`make`, whose results are handed out several times, each in one thread: no two lower at once in one context.

    What is lowered amid another lowering has one of its own: there, modules would be put into the outer one.
    """
    own: Any = local()

    def context() -> Any:
        if is_amid_another():
            return make()
        left = getattr(own, "left", 0)
        if not left:
            own.made = make()
        own.left = (left or LOWERINGS) - 1
        return own.made

    return context


def is_amid_another() -> bool:
    """Whether this thread is in a context: MLIR says so by an error only."""
    try:
        return mlir.ir.Context.current is not None
    except ValueError:
        return False
