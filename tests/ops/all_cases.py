"""Every case of every primitive with a rule."""

from __future__ import annotations

from tests.ops import (
    cases,
    cases_attention,
    cases_indexing,
    cases_kernels,
    cases_linear_algebra,
    cases_made,
)

CASES = [
    *cases.CASES,
    *cases_attention.ATTENTION,
    *cases_kernels.KERNELS,
    *cases_linear_algebra.LINEAR_ALGEBRA,
    *cases_indexing.FORMS,
    *cases_made.MADE,
]
ABSENT = cases.ABSENT | cases_made.ABSENT
