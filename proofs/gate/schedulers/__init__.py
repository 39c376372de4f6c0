"""The gate on whole schedulers: random workloads on real tensors, the model beside every call of the manager.

Imports the gate and `impl`'s device and scheduler. Start with `gate.py`; `vllm.py` drives vLLM's own
scheduler.
"""

SCHEDULERS = ("torch-scheduler", "vllm-scheduler")
"""Those that have a name."""
