"""What a request is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """The tokens of a request, and what its keys hold beside them."""

    tokens: Sequence[int]
    """A list, if it is one that grows where it is (`grow`)."""
    salt: int = 0
    lora: int = 0
    prefixes: list[int] = field(default_factory=list, compare=False, repr=False)
    """What a reading has made of its prefixes so far; only that reading looks at it."""

    def grown(self, tokens: tuple[int, ...]) -> Text:
        """This text, and more tokens."""
        return Text(tuple(self.tokens) + tokens, self.salt, self.lora, list(self.prefixes))

    def grow(self, tokens: Sequence[int]) -> None:
        """More tokens, in this text itself: its tokens are a list, and nobody goes back to what it was."""
        assert isinstance(self.tokens, list)
        self.tokens.extend(tokens)


NOBODY = Text(())
"""What a request that never came is made of: rules may look at it, none decides by it."""
