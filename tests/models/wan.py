"""Wan: a transformer over patches of a video latent, with rotary positions in time and space."""

import torch
from diffusers import WanTransformer3DModel

from .case import BATCH, SEQUENCE, Case, floats


def build() -> Case:
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    inputs = {
        "hidden_states": floats(BATCH, 4, 3, 8, 8),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": floats(BATCH, SEQUENCE, 16),
    }
    return Case(model, inputs)
