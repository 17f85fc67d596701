"""The training text: the language reference that ships with Python, about 465,000 characters of English.

Nothing is downloaded. The text is cut into tokens by byte-pair encoding learned from the text itself: start from
single characters, then merge the most frequent neighbours again and again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pydoc_data.topics import topics

import torch
from torch import Tensor

# A word with the one space before it, or a run of spaces, or a run of other characters. Merges stay inside these.
PIECES = re.compile(r" ?[A-Za-z_]+|[ \n]+(?=[ \n])|[ \n]+| ?[^A-Za-z_ \n]+")


def python_reference() -> str:
    """All topics of Python's own help, in a fixed order."""
    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass
class Tokenizer:
    vocabulary: list[str]  # the text of each token: single characters first, then one entry a merge
    merges: dict[tuple[str, str], int]  # a pair of neighbours and its rank: lower ranks are merged first

    @classmethod
    def learn(cls, text: str, vocabulary_size: int) -> Tokenizer:
        counts = Counter(PIECES.findall(text))
        words = {piece: list(piece) for piece in counts}
        pairs: Counter[tuple[str, str]] = Counter()  # how often two tokens are neighbours in the text
        found_in: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for piece, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[piece]
                found_in[pair].add(piece)
        vocabulary = sorted(set(text))
        merges: dict[tuple[str, str], int] = {}
        while len(vocabulary) < vocabulary_size:
            # Ties are broken by the text of the pair: the result must not depend on the order of a set.
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            merges[best] = len(merges)
            vocabulary.append("".join(best))
            for piece in found_in.pop(best):
                for pair in pairwise(words[piece]):
                    pairs[pair] -= counts[piece]
                words[piece] = _merge(words[piece], best)
                for pair in pairwise(words[piece]):
                    pairs[pair] += counts[piece]
                    found_in[pair].add(piece)
        return cls(vocabulary, merges)

    def __post_init__(self) -> None:
        self._ids = {token: index for index, token in enumerate(self.vocabulary)}
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> Tensor:
        """Token ids of the text, (length,) int64. Raises KeyError for a character that is not in the vocabulary."""
        ids: list[int] = []
        for piece in PIECES.findall(text):
            if piece not in self._known:
                self._known[piece] = [self._ids[token] for token in self._split(piece)]
            ids += self._known[piece]
        return torch.tensor(ids, dtype=torch.int64, device="cpu")

    def decode(self, ids: Tensor) -> str:
        return "".join(self.vocabulary[index] for index in ids.tolist())

    def _split(self, piece: str) -> list[str]:
        parts = list(piece)
        while len(parts) > 1:
            first = min(pairwise(parts), key=lambda pair: self.merges.get(pair, len(self.merges)))
            if first not in self.merges:
                break
            parts = _merge(parts, first)
        return parts


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in parts:
        # `merged[-1]` cannot be a product of this same merge and match again: its text is longer than pair[0].
        if merged and merged[-1] == pair[0] and part == pair[1]:
            merged[-1] = pair[0] + pair[1]
        else:
            merged.append(part)
    return merged


@dataclass
class TextData:
    train: Tensor  # token ids, (tokens,) int64
    held_out: Tensor
    tokenizer: Tokenizer
    characters_per_token: float

    @classmethod
    def load(cls, vocabulary_size: int = 512, held_out: float = 0.1) -> TextData:
        text = python_reference()
        tokenizer = Tokenizer.learn(text, vocabulary_size)
        ids = tokenizer.encode(text)
        cut = int(len(ids) * (1 - held_out))
        return cls(ids[:cut], ids[cut:], tokenizer, len(text) / len(ids))

    def to(self, device: torch.device) -> TextData:
        return TextData(self.train.to(device), self.held_out.to(device), self.tokenizer, self.characters_per_token)


def batch(ids: Tensor, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of the text: inputs and the same shifted by one token, each (size, context) int64 on ids' device.

    The places are drawn by a CPU generator, so that every device sees the same batches.
    """
    starts = torch.randint(len(ids) - context, (size, 1), generator=generator, device="cpu").to(ids.device)
    windows = starts + torch.arange(context + 1, device=ids.device)
    tokens = ids[windows]
    return tokens[:, :-1], tokens[:, 1:]


def windows(ids: Tensor, context: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """The whole text as batches of adjacent windows, for a held-out loss that does not depend on chance."""
    count = (len(ids) - 1) // context
    inputs = ids[: count * context].view(count, context)
    targets = ids[1 : count * context + 1].view(count, context)
    return list(zip(inputs.split(size), targets.split(size), strict=True))
