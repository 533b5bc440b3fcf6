"""All mutants."""

from __future__ import annotations

from mutants import heart, mends
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*mends.MUTANTS, *heart.MUTANTS)
BY_NAME = {one.name: one for one in MUTANTS}
