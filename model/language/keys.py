"""The key under which a block is found in the prefix cache."""

from __future__ import annotations

from slotproof.model.language.algebra import Int, ite
from slotproof.model.language.engine import Engine


def block_key(engine: Engine, r: Int, i: Int) -> Int:
    """The key of r's block i: its tokens and all before them, the LoRA name and the cache salt."""
    rules, read = engine.rules, engine.read
    start = 0 if rules.key_covers_prefix else engine.tokens(i)
    lora = read.lora(r)
    salt = read.salt(r) if rules.key_covers_salt else 0
    if not rules.key_tags_kinds:
        lora, salt = ite(lora != 0, lora, salt), ite(lora != 0, salt, 0)
    return read.digest(read.span(r, start, engine.tokens(i + 1)), lora, salt)
