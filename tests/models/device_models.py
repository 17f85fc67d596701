"""The models of examples/ (MLP, residual CNN, LSTM, GPT) behind one form: inputs and labels in, loss and logits out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from .case import BATCH, SEQUENCE, VOCABULARY, Case, floats, tokens

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from cnn_digits import ResNet
from gpt import GPT, GPTConfig
from lstm_text import CharacterLSTM

IMAGES = 8
CLASSES = 10


class WithLoss(nn.Module):
    """Adds the cross entropy of a model's logits [..., classes] and of labels [...]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.model(inputs)
        logits = output[0] if isinstance(output, tuple) else output  # the LSTM also returns its state
        return {"loss": F.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


def build_mlp() -> Case:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, CLASSES))
    return Case(WithLoss(model), digit_inputs())


def build_cnn() -> Case:
    return Case(WithLoss(ResNet(width=8)), digit_inputs())


def build_lstm() -> Case:
    # Dynamo leaves LSTM layers to eager code, unless torch._dynamo.config.allow_rnn says otherwise.
    return Case(WithLoss(CharacterLSTM(VOCABULARY, width=32, layers=2)), text_inputs(), breaks=1)


def build_gpt() -> Case:
    config = GPTConfig(vocabulary_size=VOCABULARY, context=SEQUENCE, layers=2, heads=2, width=32)
    return Case(WithLoss(GPT(config)), text_inputs())


def digit_inputs() -> dict[str, Tensor]:
    return {"inputs": floats(IMAGES, 1, 8, 8), "labels": tokens(IMAGES, below=CLASSES)}


def text_inputs() -> dict[str, Tensor]:
    ids = tokens(BATCH, SEQUENCE)
    return {"inputs": ids, "labels": ids.roll(-1, 1)}


DEVICE_MODELS = {"mlp": build_mlp, "cnn": build_cnn, "lstm": build_lstm, "gpt": build_gpt}
