"""A sum in a fixed order, in whatever order its terms arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Tree(Generic[T]):
    """The sum of n terms, pairs of neighbours first, then pairs of these: rounding does not depend on who was faster.

    Terms are given one by one, in any order, each once; None stands for a term that is left out. As soon as both of two
    neighbours are there they are added, so that only a few sums are held when terms arrive about in order.

    >>> tree = Tree(3, lambda a, b: f"({a}+{b})")
    >>> for k, term in ((2, "z"), (0, "x"), (1, "y")):
    ...     tree.give(k, term)
    >>> tree.total
    '((x+y)+z)'
    """

    def __init__(self, n: int, add: Callable[[T, T], T]) -> None:
        self.n, self.add = n, add
        self.total: T | None = None
        self._waiting: dict[tuple[int, int], T | None] = {}

    def give(self, k: int, term: T | None) -> None:
        """Term number k of 0, ..., n - 1."""
        level, width = 0, self.n
        while width > 1:
            neighbour = (level, k ^ 1)
            if k ^ 1 < width:
                if neighbour not in self._waiting:
                    self._waiting[level, k] = term
                    return
                other = self._waiting.pop(neighbour)
                first, second = (other, term) if k % 2 else (term, other)
                term = second if first is None else first if second is None else self.add(first, second)
            level, width, k = level + 1, -(-width // 2), k // 2
        self.total = term
