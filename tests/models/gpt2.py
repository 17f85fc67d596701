"""GPT-2: learned positions, layer norm, transposed linear layers."""

from transformers import GPT2Config, GPT2LMHeadModel

from .case import VOCABULARY, Case, language_inputs


def build() -> Case:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=1,
        n_head=4,
        n_positions=64,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    # transformers warns that this configuration names no loss, and Dynamo breaks the graph at its logger.
    return Case(GPT2LMHeadModel(config), language_inputs(), graphs=2, breaks=3)
