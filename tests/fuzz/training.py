"""What a training script does in one go, for steps to call: optimizers and recurrent layers."""

from __future__ import annotations

from typing import Any

import torch

from .values import values


def optimize(kind: str, tensors: list[torch.Tensor], steps: int, **options: Any) -> torch.Tensor:
    """Steps of a fused optimizer on the memory of `tensors`, in place.

    Args:
        kind: the name of a class of torch.optim.
        options: its arguments.

    Returns:
        What the optimizer remembers of the first tensor, or its gradient when it remembers nothing.
    """
    parameters = [tensor.detach().requires_grad_() for tensor in tensors]
    optimizer = getattr(torch.optim, kind)(parameters, fused=True, **options)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = parameter.detach() * 0.5 + 0.25
        optimizer.step()
    first = parameters[0]
    state = optimizer.state[first]
    kept = next((state[name] for name in ("exp_avg_sq", "momentum_buffer", "sum") if state.get(name) is not None), None)
    return first.grad if kept is None else kept


def rnn(kind: str, x: torch.Tensor, hidden: int, seed: int, packed: bool = False, **options: Any) -> list[torch.Tensor]:
    """A recurrent layer or cell with given weights.

    Args:
        kind: "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell" or "GRUCell".
        x: the input; its last dimension is that of the features.
        packed: the sequences have different lengths. Only for a layer, and `x` with three dimensions.
        options: arguments of the class in torch.nn.

    Returns:
        The output, the last state, and a weight, which is a leaf.
    """
    module = getattr(torch.nn, kind)(x.shape[-1], hidden, **options).to(x.dtype)
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(values(tuple(parameter.shape), x.dtype, "normal", seed + index) * 0.5)
    module.to(x.device)
    if packed:
        batch_first = options.get("batch_first", False)
        batch, length = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
        lengths = torch.tensor([max(1, length - index) for index in range(batch)])
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=batch_first)
    result = module(x)
    output, state = result if isinstance(result, tuple) else (result, result)
    if packed:
        output, _ = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=options.get("batch_first", False))
    if isinstance(state, tuple):
        state = state[1]
    return [output, state, next(module.parameters())]
