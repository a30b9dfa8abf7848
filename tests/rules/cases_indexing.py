"""Cases of gather, scatter and slices in the forms that indexing, take, segment_sum and one-hot produce."""

from __future__ import annotations

FORMS = []
