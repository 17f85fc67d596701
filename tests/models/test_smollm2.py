"""A model with real weights writes on neuron, eager and compiled, the text that it writes on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .training_step import graphs_since_reset

pytestmark = pytest.mark.models

QUESTION = "Name three planets and say what each is known for."
TOKENS = 24


class Writer:
    """The model on neuron, and the text that it wrote before it was moved there."""

    def __init__(self) -> None:
        from .smollm2 import load  # needs transformers, which plain `pytest` runs without

        self.model, self.tokenizer = load()
        self.expected = self.write("dynamic")
        assert len(self.expected) > TOKENS, "the answer ended early"
        self.model.to("neuron")

    def write(self, cache: str, **settings: Any) -> str:
        from .smollm2 import continue_greedily

        return continue_greedily(self.model, self.tokenizer, QUESTION, TOKENS, cache, **settings)


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer()


def assert_compiled(graphs: int) -> None:
    made = graphs_since_reset()
    assert (made.captured, made.breaks) == (graphs, 0)
    assert [graph["python_reason"] for graph in torch.neuron.get_dynamo_metrics()] == [None] * graphs


def test_eager_text_is_that_of_the_cpu(writer: Writer) -> None:
    assert writer.write("dynamic") == writer.expected


def test_static_cache_compiles_the_decoding_step(writer: Writer) -> None:
    # transformers compiles by itself what it calls once a token, when the cache has a fixed size.
    assert writer.write("static") == writer.expected
    assert_compiled(graphs=1)


def test_compiled_forward_writes_the_same_text(writer: Writer) -> None:
    forward = writer.model.forward
    writer.model.forward = torch.compile(forward, backend="neuron")
    try:
        assert writer.write("static", disable_compile=True) == writer.expected
    finally:
        writer.model.forward = forward
    assert_compiled(graphs=2)  # the question, then one token at a time
