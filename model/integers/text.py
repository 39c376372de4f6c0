"""What a request is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """The tokens of a request, and what its keys hold beside them."""

    tokens: tuple[int, ...]
    salt: int = 0
    lora: int = 0
    prefixes: list[int] = field(default_factory=list, compare=False, repr=False)
    """What a reading has made of its prefixes so far; only that reading looks at it."""

    def grown(self, tokens: tuple[int, ...]) -> Text:
        """This text, and more tokens."""
        return Text(self.tokens + tokens, self.salt, self.lora, list(self.prefixes))


NOBODY = Text(())
"""What a request that never came is made of: rules may look at it, none decides by it."""
