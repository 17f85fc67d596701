"""A model with real weights writes on neuron, eager and compiled, the text that it writes on the CPU."""

from __future__ import annotations

import pytest
import torch

from .training_step import graphs_since_reset, reset_counters

pytestmark = pytest.mark.models

QUESTION = "Name three planets and say what each is known for."
TOKENS = 24


def test_greedy_text_is_that_of_the_cpu() -> None:
    from .smollm2 import continue_greedily, load  # needs transformers, which plain `pytest` runs without

    model, tokenizer = load()
    expected = continue_greedily(model, tokenizer, QUESTION, TOKENS, "static")
    assert len(expected) > TOKENS, "the answer ended early"

    model.to("neuron")
    assert continue_greedily(model, tokenizer, QUESTION, TOKENS, "dynamic") == expected

    reset_counters()
    torch.neuron.reset_dynamo_metrics()
    model.forward = torch.compile(model.forward, backend="neuron")
    assert continue_greedily(model, tokenizer, QUESTION, TOKENS, "static") == expected
    graphs = graphs_since_reset()
    assert (graphs.captured, graphs.breaks) == (2, 0)  # the question, then one token at a time
    metrics = torch.neuron.get_dynamo_metrics()
    assert [graph["python_reason"] for graph in metrics] == [None] * len(metrics)
