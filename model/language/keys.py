"""The key under which a block is found in the prefix cache."""

from __future__ import annotations

from slotproof.model.language.algebra import Int, both, ite
from slotproof.model.language.engine import Engine


def block_key(engine: Engine, row: Int, i: Int) -> Int:
    """The key of a row's block i: its tokens and all before them, LoRA, cache salt, and group.

    Two LoRAs may have one name; each has a path of its own.
    """
    rules, read = engine.rules, engine.read
    r, g = engine.owner(row), engine.group(row)
    start = 0 if rules.key_covers_prefix else engine.tokens(i, g)
    lora = read.lora(r)
    if not rules.key_covers_lora_path:  # as LoRAs 1 and 2, which are all that is asked about
        lora = ite(lora == 2, 1, lora)
    salt = read.salt(r) if rules.key_covers_salt else 0
    if not rules.key_tags_kinds:  # the salt is in what the first tokens are hashed with, the LoRA everywhere
        first = engine.tokens(i + 1, g) <= engine.hash_block_size
        lora, salt = ite(both(first, lora == 0), salt, lora), ite(both(first, lora == 0), 0, salt)
    group = g if rules.key_covers_group else 0
    return read.digest(read.span(r, start, engine.tokens(i + 1, g)), lora, salt, group)
