"""Mixtral: a mixture of experts with the loss that balances them, and sliding-window attention."""

from transformers import MixtralConfig, MixtralForCausalLM

from .case import VOCABULARY, Case, language_inputs


def build() -> Case:
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        max_position_embeddings=64,
        output_router_logits=True,
    )
    return Case(MixtralForCausalLM(config), language_inputs())
