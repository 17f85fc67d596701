"""A small GPT: token and position embeddings, pre-norm blocks with causal attention, a tied output layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass
class GPTConfig:
    vocabulary_size: int
    context: int = 128  # tokens the model can look back at
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        # (batch, length, 3 * width) -> three of (batch, heads, length, width / heads)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """tokens (batch, length) int64, length <= context -> logits (batch, length, vocabulary_size)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
        self.apply(self._init)
        self.head.weight = self.tokens.weight
        # Each block adds two branches to the residual stream: keep its variance from growing with depth (GPT-2).
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats a token; tokens and targets (batch, length) int64."""
        # float() because autocast on the CPU, unlike on an accelerator, would leave the softmax in low precision.
        return F.cross_entropy(self(tokens).flatten(0, 1).float(), targets.flatten())

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float = 0.8, top_k: int = 40) -> Tensor:
        """Appends `count` sampled tokens to tokens (batch, length).

        The dice are rolled on the CPU, so that every device writes the same text from the same seed.
        """
        for _ in range(count):
            logits = self(tokens[:, -self.config.context :])[:, -1].float() / temperature
            best, choices = logits.topk(min(top_k, logits.shape[-1]))
            picked = torch.multinomial(best.softmax(-1).cpu(), 1).to(tokens.device)
            tokens = torch.cat([tokens, choices.gather(1, picked)], dim=1)
        return tokens
