"""Which passes of a script's own loops over datasets train; pure bookkeeping.

A script says nowhere what a dataset is for. It shows: between two elements of a pass that
trains, an optimizer applies gradients; between those of a validation, none does. Until that has
been seen a pass stays whole, which is right for either.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Reading:
    """One pass of the script over a dataset.

    Attributes:
        key: what tells passes apart that are alike (the dataset, and the line that reads it).
        can_be_cut: whether its elements are known to be batches of rows.
        n_elements: of the dataset; None where it does not tell, or has no end.
        gap: most elements that were read for one application of gradients; 0 until one is seen.
        n_since: elements read since gradients were last applied.
        has_trained: whether gradients were applied in this very pass.
        is_in_graph: whether a function of the script's reads it, in its own graph.
        last: the last element, where it may be asked for once more.
    """

    key: Hashable
    can_be_cut: bool = True
    n_elements: int | None = None
    gap: int = 0
    n_since: int = 0
    has_trained: bool = False
    is_in_graph: bool = False
    last: Any = None


@dataclass(slots=True)
class Readings:
    """All passes that a script makes.

    Where a step reads from several passes, none of them is cut: rows of the one may belong to
    rows of the other, or one of them may only be looked at.
    """

    n_applied: int = 0
    _fresh: list[Reading] = field(default_factory=list)
    _gap_by_key: dict[Hashable, int] = field(default_factory=dict)
    _mixed: set[Hashable] = field(default_factory=set)

    def begin(self, key: Hashable, *, can_be_cut: bool, n_elements: int | None = None) -> Reading:
        """A new pass; one that is like an earlier one that trained is taken to train as well."""
        return Reading(key, can_be_cut, n_elements, self._gap_by_key.get(key, 0))

    def note(self, n_applied: int) -> list[Reading]:
        """Takes notice of how often gradients have been applied up to now.

        Returns:
            The passes whose elements were trained on since the last call; empty if nothing was
            applied.
        """
        if n_applied == self.n_applied:
            return []
        self.n_applied = n_applied
        trained = [r for r in self._fresh if r.gap or len(self._fresh) == 1]
        for reading in trained:
            reading.gap = max(reading.gap, reading.n_since)
            reading.has_trained = True
            if reading.can_be_cut and reading.key not in self._mixed:
                self._gap_by_key[reading.key] = reading.gap
        for reading in self._fresh:
            reading.n_since = 0
        self._fresh.clear()
        return trained

    def take(self, reading: Reading) -> bool:
        """Counts an element that is about to be handed out.

        Returns:
            Whether it is known to be trained on.
        """
        reading.n_since += 1
        if reading not in self._fresh:
            self._fresh.append(reading)
        return 0 < reading.n_since <= reading.gap

    def end(self, reading: Reading) -> None:
        """The pass is over; one that did not train after all casts doubt on those like it."""
        if reading in self._fresh:
            self._fresh.remove(reading)
        if reading.gap and not reading.has_trained:
            self._mixed.add(reading.key)
            self._gap_by_key.pop(reading.key, None)
