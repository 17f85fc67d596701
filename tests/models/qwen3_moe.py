"""Qwen3-MoE: experts chosen by a router, one grouped product for all of them."""

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from .case import VOCABULARY, Case, language_inputs


def build() -> Case:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        max_position_embeddings=64,
        output_router_logits=True,
    )
    return Case(Qwen3MoeForCausalLM(config), language_inputs())
