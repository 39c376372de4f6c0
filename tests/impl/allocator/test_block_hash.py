"""Prefix hashes: chained, incremental, of full blocks of final tokens, unambiguous between kinds of key."""

from __future__ import annotations

import pytest

from slotproof.impl.allocator.block_hash import root_hash
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.request import Request


def hashes(tokens: list[int], salt: str | None = None, lora: str | None = None) -> list[bytes]:
    return Request(
        "r", tokens, block_size=2, cache_salt=salt, lora=("7", lora) if lora else None
    ).block_hashes


def test_a_hash_names_everything_up_to_its_block() -> None:
    a, b = hashes([1, 2, 3, 4]), hashes([9, 2, 3, 4])
    assert a[0] != b[0]
    assert a[1] != b[1]
    assert a == hashes([1, 2, 3, 4, 5])[:2]
    assert a[1] != hashes([3, 4])[0]


def test_hashes_follow_appended_tokens() -> None:
    request = Request("r", [1], block_size=2)
    assert request.block_hashes == []
    for token in (2, 3, 4):
        request.append_output_token_ids([token])
    assert request.block_hashes == hashes([1, 2, 3, 4])
    request.append_output_token_ids([5, 6, 7, 8, 9])
    assert request.block_hashes == hashes([1, 2, 3, 4, 5, 6, 7, 8])
    assert request.num_tokens == 9


def test_salt_and_lora_of_equal_value_differ() -> None:
    tokens = [1, 2, 3, 4]
    variants = [hashes(tokens), hashes(tokens, salt="7"), hashes(tokens, lora="7"), hashes(tokens, "7", "7")]
    for block in range(2):
        assert len({variant[block] for variant in variants}) == len(variants)
    assert hashes(tokens, "7", "8") != hashes(tokens, "8", "7")
    assert hashes(tokens, lora="7") != hashes(tokens, lora="8")  # two paths of one name
    assert hashes(tokens, salt="7") == hashes(tokens, salt="7")


def test_no_two_lists_of_keys_read_alike() -> None:
    lists = [
        (),
        (("", ""),),
        (("a", "bc"),),
        (("ab", "c"),),
        (("a", "b"), ("c", "")),
        (("a", ""), ("b", "c")),
        (("a", "b"), ("", "c")),
    ]
    assert len({root_hash(keys) for keys in lists}) == len(lists)


def test_tokens_do_not_run_into_each_other() -> None:
    assert hashes([1, 256]) != hashes([257, 0])
    assert hashes([0, 1]) != hashes([1, 0])
    assert hashes([-1, 0]) != hashes([0, -1])


@pytest.mark.parametrize("token", [1 << 63, "x", 1.5, None])
def test_a_token_that_is_no_integer_of_64_bits_is_refused(token: object) -> None:
    request = Request("r", [1, 2], block_size=2)
    before = request.num_tokens, list(request.block_hashes)
    with pytest.raises(AllocatorError, match=r"^request r: tokens must be integers of 64 bits$"):
        request.append_output_token_ids([5, token])  # type: ignore[list-item]
    assert (request.num_tokens, request.block_hashes) == before
