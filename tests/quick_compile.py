"""Compiling quickly where values are looked at and not what XLA makes: of tiny operators it is most of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import pytest

# there is no public default for compiler options but XLA_FLAGS, which is for all tests
from jax._src import (
    compiler,
)

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

_options_of: Any = compiler.get_compile_options


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
        yield
