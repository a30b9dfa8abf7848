"""Compiling quickly where values are looked at and not what XLA makes: of tiny operators it is most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest
from jax._src import compiler  # there is no public default for compiler options but XLA_FLAGS, which is for all tests

QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    QUICK["xla_cpu_use_fusion_emitters"] = False  # later versions know nothing else, and not this option


@contextmanager
def compiled_quickly() -> Iterator[None]:
    """XLA's CPU compiler takes the quick way meanwhile, also for operators that run one by one."""
    options_of: Any = compiler.get_compile_options

    def quick(*args: Any, env_options_overrides: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        return options_of(*args, env_options_overrides=QUICK | (env_options_overrides or {}), **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", quick)
        yield
