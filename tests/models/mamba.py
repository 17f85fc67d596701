"""Mamba: a selective state space, in its form of PyTorch operators: a convolution and a scan over the sequence.

The scan is unrolled when it is compiled, so the sequence is short.
"""

from transformers import MambaConfig, MambaForCausalLM

from .case import BATCH, VOCABULARY, Case, tokens


def build() -> Case:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=1)
    ids = tokens(BATCH, 6)
    return Case(MambaForCausalLM(config), {"input_ids": ids, "labels": ids, "use_cache": False})
