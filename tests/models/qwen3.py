"""Qwen3: Llama's block with norms on queries and keys."""

from transformers import Qwen3Config, Qwen3ForCausalLM

from .case import VOCABULARY, Case, language_inputs


def build() -> Case:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    return Case(Qwen3ForCausalLM(config), language_inputs())
