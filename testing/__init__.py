"""slotproof in a test suite: assertions, and a pytest plugin that watches vLLM's managers.

    from slotproof.testing import assert_agrees, assert_consistent, assert_proved

    def test_our_allocator():
        assert_agrees("our.module:factory", calls=2000, seed=1)

pytest loads the plugin by itself (`plugin.py`): its fixture `slotproof_watch` follows every `KVCacheManager`
that the test makes. Imports `proofs`, and only when something is asserted.
"""

from slotproof.testing.assertions import assert_agrees, assert_consistent, assert_proved

__all__ = ["assert_agrees", "assert_consistent", "assert_proved"]
