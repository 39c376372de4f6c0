"""vLLM's engine on the CPU, serving a tiny model of random weights that is made on the spot.

    python engine.py FOLDER ROUNDS

With SLOTPROOF_WATCH its managers are recorded. Prompts share beginnings, the pool is too small for all of
them at once, and some requests are aborted. At the end it prints the seconds of its steps. With `FOLDER/kill`
there, it kills itself by SIGKILL half way, in the midst of its work, and prints how many
seconds ago it made each call of `allocate_slots`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def main(folder: Path, rounds: int) -> None:
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.inputs import TokensPrompt

    is_killed, made = (folder / "kill").exists(), list[float]()
    if is_killed:
        count_calls(made)
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder / "model"),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=256,
            max_num_seqs=16,
            max_num_batched_tokens=128,
            enable_chunked_prefill=True,
            num_gpu_blocks_override=20,
            block_size=32,
            enforce_eager=True,
            disable_log_stats=False,
            seed=0,
        )
    )
    random, steps, tokens = Random(0), [], 0
    begin = [random.randrange(256) for _ in range(96)]
    for round_ in range(rounds):
        for i in range(12):
            ids = begin[: 32 * random.randrange(4)] + [random.randrange(256) for _ in range(20)]
            engine.add_request(
                f"{round_}-{i}",
                TokensPrompt(prompt_token_ids=ids),
                SamplingParams(max_tokens=60, ignore_eos=True, detokenize=False),
            )
        while engine.has_unfinished_requests():
            began = time.perf_counter()
            outputs = engine.step()
            steps.append(time.perf_counter() - began)
            tokens += sum(len(o.outputs[0].token_ids) for o in outputs if o.finished)
            if len(steps) % 37 == 5:
                engine.abort_request([f"{round_}-{random.randrange(12)}"])
            if is_killed and round_ >= rounds // 2:
                now = time.monotonic()
                print(json.dumps({"ages": [now - at for at in made]}), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"steps": len(steps), "seconds": sum(steps), "median": statistics.median(steps)}))


def count_calls(made: list[float]) -> None:
    """Notes when each call of `allocate_slots` was made."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    allocate_slots = KVCacheManager.allocate_slots

    @functools.wraps(allocate_slots)
    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(time.monotonic())
        return allocate_slots(*args, **kwargs)

    KVCacheManager.allocate_slots = counted


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
