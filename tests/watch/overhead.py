"""What it costs an engine to be recorded, and to be followed.

    python overhead.py FOLDER [ROUNDS]

Three of vLLM's engines on the CPU serve the same requests in one process, step by step in turn: one as it is,
one is recorded, one is followed. The model is made on the spot (random weights, 8 layers of 512); 32 requests
run at once, of 128 to 384 tokens and 64 more; prompts share beginnings, and a pool of 260 blocks preempts.

It prints what a step takes, as ratios to the engine that is as it is: by the clock, and in CPU time of the
thread that makes up the steps. `own` is what slotproof itself took of that thread, as a share of the steps'
CPU time: on a machine that does something else too, it is the figure to trust.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}
RUNNING = 32
METHODS = (
    "get_computed_blocks",
    "allocate_slots",
    "cache_blocks",
    "remove_skipped_blocks",
    "free",
    "pop_blocks_for_free",
)


class Own:
    """The CPU seconds of a manager's methods around what they did before."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, manager: Any, attach: Callable[[Any], object]) -> None:
        """Let `attach` wrap the methods of a manager, and count what that adds."""
        for sign in (-1, 1):
            for name in METHODS:
                setattr(manager, name, self._timed(getattr(manager, name), sign))
            if sign < 0:
                attach(manager)

    def _timed(self, method: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += sign * (time.thread_time() - began)

        return timed


def new_engine(model: Path) -> Any:
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=512,
            max_num_seqs=RUNNING,
            max_num_batched_tokens=512,
            num_gpu_blocks_override=260,
            block_size=32,
            enforce_eager=True,
            seed=0,
        )
    )


def add(engine: Any, round_: int) -> None:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    random = Random(round_)
    begin = [random.randrange(1024) for _ in range(256)]
    for i in range(RUNNING):
        ids = begin[: 64 * random.randrange(5)] + [random.randrange(1024) for _ in range(128)]
        params = SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False, temperature=0)
        engine.add_request(f"{round_}-{i}", TokensPrompt(prompt_token_ids=ids), params)


def main(folder: Path, rounds: int) -> None:
    from slotproof.impl.vllm.live.attach import on_every_manager
    from slotproof.impl.vllm.live.recorder import Recorder
    from slotproof.proofs.watch.watching import Watching

    model, recorded = folder / "model", folder / "recorded"
    for made in (model, recorded):
        made.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    engines = {"as it is": new_engine(model)}
    recorders: list[Recorder] = []
    watching = Watching()
    watching.close()  # of its own it shall follow none
    own = {"recorded": Own(), "followed": Own()}
    attach = {
        "recorded": lambda manager: recorders.append(Recorder(manager, recorded)),
        "followed": watching.attach,
    }
    for name, of_engine in own.items():
        end = on_every_manager(partial(of_engine.around, attach=attach[name]))
        engines[name] = new_engine(model)
        end()
        of_engine.seconds = 0.0
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for round_ in range(rounds):
        for engine in engines.values():
            add(engine, round_)
        while any(engine.has_unfinished_requests() for engine in engines.values()):
            for name, engine in engines.items():
                began = time.perf_counter(), time.thread_time()
                engine.step()
                steps[name].append((time.perf_counter() - began[0], time.thread_time() - began[1]))
    watching.close()
    recorders[0].flush()
    seconds, cpu = (
        {name: [step[i] for step in of_engine] for name, of_engine in steps.items()} for i in (0, 1)
    )
    plain = seconds["as it is"]
    result: dict[str, Any] = {"steps": len(plain), "median_step_ms": 1e3 * statistics.median(plain)}
    for name in ("recorded", "followed"):
        result[name] = {
            "clock": sum(seconds[name]) / sum(plain),
            "cpu": sum(cpu[name]) / sum(cpu["as it is"]),
            "own": own[name].seconds / sum(cpu[name]),
        }
    result["followed_calls"] = watching.summary.calls
    result["violations"] = watching.summary.violations
    result["megabytes"] = recorders[0].path.stat().st_size / 1e6
    print(json.dumps(result))


if __name__ == "__main__":
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
