"""DiT: a transformer over patches of a latent, modulated by the time step and the class."""

import torch
from diffusers import DiTTransformer2DModel
from diffusers.models.embeddings import LabelEmbedding

from .case import BATCH, Case, floats, tokens


def build() -> Case:
    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    for module in model.modules():
        if isinstance(module, LabelEmbedding):
            module.dropout_prob = 0.0  # a constant in diffusers: classes are dropped at random in training
    inputs = {
        "hidden_states": floats(BATCH, 4, 8, 8),
        "timestep": torch.tensor([3, 500]),
        "class_labels": tokens(BATCH, below=10),
    }
    return Case(model, inputs)
