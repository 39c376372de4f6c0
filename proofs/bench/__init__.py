"""How fast: our allocator beside vLLM's and beside a loop that only counts.

Imports `impl` alone. Start with `bench.py`.
"""
