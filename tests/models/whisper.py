"""Whisper: convolutions over audio features, an encoder, a decoder with cross attention."""

from transformers import WhisperConfig, WhisperForConditionalGeneration

from .case import BATCH, SEQUENCE, VOCABULARY, Case, floats, tokens


def build() -> Case:
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {
        "input_features": floats(BATCH, 8, 40),
        "labels": tokens(BATCH, SEQUENCE),
        "use_cache": False,
    }
    return Case(WhisperForConditionalGeneration(config), inputs)
