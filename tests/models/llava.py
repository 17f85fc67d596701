"""LLaVA: a CLIP image encoder whose patches take the places of image tokens in a Llama."""

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from .case import BATCH, SEQUENCE, VOCABULARY, Case, floats, tokens

IMAGE_TOKEN = VOCABULARY - 1
PATCHES = (16 // 4) ** 2


def build() -> Case:
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        projection_dim=32,
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE_TOKEN, vision_feature_layer=-1)
    image = torch.full((BATCH, PATCHES), IMAGE_TOKEN)
    ids = torch.cat([image, tokens(BATCH, SEQUENCE, below=IMAGE_TOKEN)], 1)
    inputs = {"input_ids": ids, "pixel_values": floats(BATCH, 3, 16, 16), "labels": ids, "use_cache": False}
    # transformers looks at values while it checks that there are as many image tokens as patches.
    return Case(LlavaForConditionalGeneration(config), inputs, graphs=4, breaks=8)
