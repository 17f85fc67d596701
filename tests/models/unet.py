"""UNet2DCondition: residual blocks, group norm and cross attention, downwards and upwards."""

import torch
from diffusers import UNet2DConditionModel

from .case import BATCH, SEQUENCE, Case, floats


def build() -> Case:
    model = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    inputs = {
        "sample": floats(BATCH, 4, 8, 8),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": floats(BATCH, SEQUENCE, 16),
    }
    # PyTorch decomposes group normalisation for the CPU into other products than for devices.
    return Case(model, inputs, inductors_bits=False)
