"""Llama: rotary embeddings, grouped-query attention, gated MLP."""

from transformers import LlamaConfig, LlamaForCausalLM

from .case import VOCABULARY, Case, language_inputs


def build() -> Case:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return Case(LlamaForCausalLM(config), language_inputs())
