"""ViT: patches of an image through a convolution, an encoder, a classifier."""

from transformers import ViTConfig, ViTForImageClassification

from .case import BATCH, Case, floats, tokens


def build() -> Case:
    config = ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )
    inputs = {"pixel_values": floats(BATCH, 3, 16, 16), "labels": tokens(BATCH, below=5)}
    return Case(ViTForImageClassification(config), inputs)
