"""The bytes that a real engine reserves for LoRA adapters: a config.json as JSON in, one number out."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

RANK, MAX_LORAS = 16, 2


def room(model: Any) -> int:
    """Of all slots of all layers."""
    stacks = (getattr(module, name, ()) for module in model.modules() for name in ("lora_a_stacked", "lora_b_stacked"))
    return sum(
        tensor.numel() * tensor.element_size()
        for stack in stacks
        for tensor in (stack if isinstance(stack, tuple | list) else (stack,))
    )


def main() -> None:
    """Loads the model with invented weights, in this process."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(json.load(sys.stdin)))
        engine = LLM(
            model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, dtype="bfloat16",
            enable_lora=True, max_loras=MAX_LORAS, max_lora_rank=RANK, max_model_len=128,
        )  # fmt: skip
        (found,) = engine.apply_model(room)
    print(f"\nROOM {found}")


if __name__ == "__main__":
    main()
