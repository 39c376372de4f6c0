"""`allocate_slots` and the lookup, stage by stage, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.kv_cache_manager import KVCacheManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.protocol import Config

BS = 4


def make(num_blocks: int = 21, window: int | None = None, **more: int | bool) -> KVCacheManager:
    options = {"max_model_len": 64, **more}
    return KVCacheManager(
        Config(num_blocks=num_blocks, block_size=BS, sliding_window=window, **options)  # type: ignore[arg-type]
    )


def ask(name: str, num_tokens: int, first: int = 0) -> Request:
    return Request(name, range(first, first + num_tokens), block_size=BS)


def admit(manager: KVCacheManager, request: Request) -> list[int]:
    """All of a request's tokens in one step; its blocks."""
    hit, tokens = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - tokens, tokens, hit) is not None
    request.num_computed_tokens = request.num_tokens
    request.status = RequestStatus.RUNNING
    return list(manager.get_block_ids(request.request_id)[0])


def free(manager: KVCacheManager) -> int:
    return manager.block_pool.get_num_free_blocks()


def test_a_decode_takes_a_block_exactly_at_a_boundary() -> None:
    manager, request = make(), ask("r", 7)
    assert admit(manager, request) == [1, 2]
    taken = []
    for _ in range(6):
        request.append_output_token_ids([0])
        taken.append(manager.allocate_slots(request, 1))
        request.num_computed_tokens += 1
    assert taken == [((),), ([3],), ((),), ((),), ((),), ([4],)]


def test_stage_0_counts_the_whole_request() -> None:
    manager = make(num_blocks=4)
    assert manager.allocate_slots(ask("r", 13), 4, full_sequence_must_fit=True) is None
    assert manager.allocate_slots(ask("r", 13), 4) == ([1],)


@pytest.mark.parametrize(
    ("status", "others", "granted"),
    [
        (RequestStatus.WAITING, True, False),
        (RequestStatus.PREEMPTED, True, False),
        (RequestStatus.RUNNING, True, True),
        (RequestStatus.WAITING, False, True),
    ],
)
def test_the_watermark_is_for_admission_beside_others(
    status: RequestStatus, others: bool, granted: bool
) -> None:
    for must_fit in (False, True):
        manager, request = make(num_blocks=4, watermark_blocks=2), ask("r", 8)
        request.status = status
        answer = manager.allocate_slots(
            request, 8, has_scheduled_reqs=others, full_sequence_must_fit=must_fit
        )
        assert (answer is not None) == granted


def test_stage_0_keeps_the_watermark_beside_the_whole_request() -> None:
    for watermark, granted in ((0, True), (1, False)):
        manager = make(num_blocks=4, watermark_blocks=watermark)
        assert (manager.allocate_slots(ask("r", 12), 4, full_sequence_must_fit=True) is not None) == granted


def test_reserved_blocks_are_left_to_others() -> None:
    manager = make(num_blocks=4)
    assert manager.allocate_slots(ask("r", 8), 8, reserved_blocks=2) is None
    assert manager.allocate_slots(ask("r", 8), 8, reserved_blocks=1) == ([1, 2],)


def test_lookahead_takes_slots_up_to_max_model_len() -> None:
    manager, request = make(max_model_len=12), ask("r", 4)
    assert manager.allocate_slots(request, 4, num_lookahead_tokens=1) == ([1, 2],)
    request.num_computed_tokens = 4
    request.append_output_token_ids([0])
    assert manager.allocate_slots(request, 1, num_lookahead_tokens=60) == ([3],)


def test_a_hit_is_shared_and_leaves_the_last_token_to_compute() -> None:
    manager = make()
    assert admit(manager, ask("a", 8)) == [1, 2]
    assert manager.get_computed_blocks(ask("b", 8)) == (([1],), 4)
    assert manager.get_computed_blocks(ask("b", 9)) == (([1, 2],), 8)
    assert admit(manager, ask("b", 9)) == [1, 2, 3]
    assert manager.block_pool.ref_cnt[1:4] == [2, 2, 1]


def test_an_idle_hit_costs_one_free_block_a_held_one_none() -> None:
    manager = make(num_blocks=4)
    first = ask("a", 8)
    admit(manager, first)
    second = ask("b", 9)
    hit, tokens = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 1, tokens, hit, reserved_blocks=0) == ([3],)
    assert free(manager) == 0

    manager = make(num_blocks=4)
    admit(manager, first := ask("a", 8))
    manager.free(first)
    hit, tokens = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 1, tokens, hit, reserved_blocks=1) is None
    assert manager.allocate_slots(second, 1, tokens, hit) == ([3],)


def test_drafts_are_not_hashed_until_they_are_final() -> None:
    manager, request = make(), ask("r", 6)
    admit(manager, request)
    request.append_output_token_ids([50])
    assert manager.allocate_slots(request, 6) == ([3],)  # 1 final, 5 drafts: 12 slots, 7 final
    assert [bool(h) for h in manager.block_pool.block_hash[1:4]] == [True, False, False]
    request.num_computed_tokens = 8
    request.append_output_token_ids([51, 52])
    manager.allocate_slots(request, 1)
    assert [bool(h) for h in manager.block_pool.block_hash[1:4]] == [True, True, False]


@pytest.mark.parametrize(("skip", "to_zero"), [((), [1, 2, 3, 4]), ((0,), [3, 4])])
def test_external_blocks_come_first_and_are_not_returned(skip: tuple[int, ...], to_zero: list[int]) -> None:
    manager, request = make(), ask("r", 20)
    answer = manager.allocate_slots(request, 8, num_external_computed_tokens=8, skip_zeroing_group_ids=skip)
    assert answer == ([3, 4],)
    assert manager.get_block_ids("r") == ([1, 2, 3, 4],)
    assert manager.take_new_block_ids() == to_zero
    assert manager.take_new_block_ids() == []


def test_a_delayed_load_is_published_by_cache_blocks() -> None:
    manager, request = make(), ask("r", 9)
    answer = manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert answer == ([],)
    assert manager.get_computed_blocks(ask("s", 9)) == (([],), 0)
    manager.cache_blocks(request, 8)
    assert manager.get_computed_blocks(ask("s", 9)) == (([1, 2],), 8)


def test_skip_reading_and_caching_off_find_nothing() -> None:
    manager = make()
    admit(manager, ask("a", 8))
    request = ask("b", 9)
    request.skip_reading_prefix_cache = True
    assert manager.get_computed_blocks(request) == (((),), 0)
    manager = make(enable_caching=False)
    admit(manager, Request("a", range(8)))
    assert manager.get_computed_blocks(Request("b", range(9))) == (((),), 0)
    assert set(manager.block_pool.block_hash) == {None}


def test_window_releases_backward_before_it_counts() -> None:
    manager, request = make(num_blocks=4, window=4), ask("r", 20)
    assert manager.allocate_slots(request, 12) == ([1, 2, 3],)
    request.num_computed_tokens, request.num_in_flight_tokens = 12, 12
    assert manager.allocate_slots(request, 4) is None  # in flight: nothing may be released yet
    request.num_in_flight_tokens = 0
    assert manager.allocate_slots(request, 4) == ([2],)  # 9 skipped tokens: blocks 2 and 1 came free, 2 first
    assert manager.get_block_ids("r") == ([0, 0, 3, 2],)
    manager.remove_skipped_blocks("r", 16)
    assert manager.get_block_ids("r") == ([0, 0, 0, 2],)


@pytest.mark.parametrize(("computed", "nulls"), [(6, 0), (7, 1), (10, 1), (11, 2)])
def test_window_keeps_the_block_that_the_next_token_still_sees(computed: int, nulls: int) -> None:
    manager = make(window=4)
    blocks = admit(manager, ask("r", 12))
    manager.remove_skipped_blocks("r", computed)
    assert manager.get_block_ids("r") == ([0] * nulls + blocks[nulls:],)


def test_window_that_its_next_token_completes_needs_a_block_less() -> None:
    manager = make(window=5)
    blocks = admit(manager, ask("a", 12))
    manager.evict_blocks(blocks[:1])
    assert manager.get_computed_blocks(ask("b", 9)) == (([0, blocks[1]],), 8)


def test_window_lookup_takes_the_rightmost_run_that_fills_the_window() -> None:
    manager = make(window=6)  # 2 blocks
    blocks = admit(manager, ask("a", 24))
    assert manager.get_computed_blocks(ask("b", 24)) == (([0, 0, 0, *blocks[3:5]],), 20)
    manager.evict_blocks([blocks[3]])
    assert manager.get_computed_blocks(ask("b", 24)) == (([0, *blocks[1:3]],), 12)
    manager.evict_blocks([blocks[1]])
    assert manager.get_computed_blocks(ask("b", 24)) == ((blocks[:1],), 4)
    manager.evict_blocks([blocks[0]])
    assert manager.get_computed_blocks(ask("b", 24)) == (([],), 0)


def test_a_hit_that_external_tokens_push_out_of_the_window_is_not_touched() -> None:
    manager, first, second = make(num_blocks=3, window=4), ask("a", 8), ask("b", 20)
    assert admit(manager, first) == [1, 2]
    manager.free(first)
    hit, tokens = manager.get_computed_blocks(second)
    assert (hit, tokens) == (([0, 2],), 8)
    # 16 computed tokens, 13 of them skipped: one block for the last external ones, one for the new.
    answer = manager.allocate_slots(second, 4, tokens, hit, num_external_computed_tokens=8)
    assert answer == ([1],)
    assert manager.get_block_ids("b") == ([0, 0, 0, 2, 1],)


def test_external_tokens_that_no_window_sees_get_no_blocks_of_their_own() -> None:
    manager = make(window=1)
    assert manager.allocate_slots(ask("r", 9), 1, num_external_computed_tokens=6) == ([1],)
    assert manager.get_block_ids("r") == ([0, 1],)


def test_a_window_of_one_token_caches_nothing() -> None:
    manager = make(window=1)
    admit(manager, ask("a", 8))
    assert set(manager.block_pool.block_hash) == {None}


@pytest.mark.parametrize(("in_flight", "granted"), [(8, True), (12, False)])
def test_window_admission_is_capped_by_what_a_request_can_hold(in_flight: int, granted: bool) -> None:
    # (4 - 1 + in_flight) tokens in blocks of 4, and one more: 4 or 5 blocks, not 10.
    manager = make(num_blocks=5, window=4, max_in_flight_tokens=in_flight)
    answer = manager.allocate_slots(ask("r", 40), 8, full_sequence_must_fit=True)
    assert (answer is not None) == granted


def test_a_freed_tail_is_reused_before_its_head() -> None:
    manager = make(num_blocks=6)
    request = ask("r", 14)
    admit(manager, request)
    manager.free(request)
    assert list(manager.block_pool.free_queue) == [4, 5, 3, 2, 1]
    manager.free(request)  # holds nothing: nothing to do
    assert free(manager) == 5


def test_rows_of_freed_requests_are_used_again() -> None:
    manager = make()
    rows = manager.commit()[0].shape[0]
    for number in range(rows + 1):
        request = ask(str(number), 4)
        admit(manager, request)
        manager.free(request)
    admit(manager, ask("r", 4))
    assert manager.commit()[0].shape[0] == rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_new_tokens": -1}, "new is -1: counts must not be negative"),
        ({"num_lookahead_tokens": -1}, "lookahead is -1"),
        ({"reserved_blocks": -1}, "reserved is -1"),
        ({"num_external_computed_tokens": -1}, "external is -1"),
        ({"num_new_computed_tokens": -1}, "new_computed is -1"),
        ({"num_new_tokens": 0}, "no new tokens and no computed ones"),
        ({"num_new_computed_tokens": 4, "new_computed_blocks": ([],)}, "0 hit blocks for 4 tokens"),
        ({"new_computed_blocks": ([1],)}, "1 hit blocks for 0 tokens"),
        ({"num_new_computed_tokens": 4, "new_computed_blocks": ([99],)}, "block 99 is out of range"),
        ({"num_new_computed_tokens": 4, "new_computed_blocks": ([9],)}, "hit block 9 is not cached any more"),
        ({"num_external_computed_tokens": 99}, "99 computed tokens to adopt"),
    ],
)
def test_a_call_that_cannot_be_meant_changes_nothing(options: dict[str, object], message: str) -> None:
    for window in (None, 2):
        manager = make(window=window)
        held = ask("held", 12, first=100)
        admit(manager, held)  # with a window, stage 1 could release blocks of this one
        for request, expected in ((ask("r", 12), message), (held, ": ")):
            before = list(manager.block_pool.free_queue), manager.get_block_ids("held")
            with pytest.raises(AllocatorError, match=expected) as error:
                manager.allocate_slots(request, **{"num_new_tokens": 1, **options})  # type: ignore[arg-type]
            assert "\n" not in str(error.value)
            assert (list(manager.block_pool.free_queue), manager.get_block_ids("held")) == before


def test_requests_that_do_not_fit_the_manager_are_refused() -> None:
    manager = make(max_model_len=8)
    with pytest.raises(AllocatorError, match="9 tokens exceed max_model_len 8"):
        manager.allocate_slots(ask("r", 9), 1)
    with pytest.raises(AllocatorError, match="its tokens are not hashed: create it with block_size 4"):
        manager.allocate_slots(Request("r", range(8)), 1)
    request = ask("r", 8)
    request.num_computed_tokens = 4
    with pytest.raises(AllocatorError, match="4 tokens are computed, but it holds no blocks"):
        manager.allocate_slots(request, 1)
    with pytest.raises(AllocatorError, match="cannot cache 8 tokens: it has 0 blocks and 2 hashes"):
        manager.cache_blocks(request, 8)
    with pytest.raises(AllocatorError, match="-1 computed tokens"):
        manager.cache_blocks(request, -1)
    with pytest.raises(AllocatorError, match="-1 processed tokens"):
        manager.remove_skipped_blocks("r", -1)
    assert free(manager) == 20


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_model_len", "sliding_window"])
def test_a_config_without_room_is_refused(name: str) -> None:
    sizes = {"num_blocks": 4, "block_size": 4, "max_model_len": 8, name: 0}
    with pytest.raises(AllocatorError, match=f"^{name} is 0: it must be at least 1$"):
        KVCacheManager(Config(**sizes))  # type: ignore[arg-type]
