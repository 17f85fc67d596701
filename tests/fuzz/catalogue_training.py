"""Steps that train: recurrent layers, fused optimizers; and inference mode, which does not."""

from __future__ import annotations

import torch

from .builder import FLOATS, Builder

LAYERS = ("RNN", "LSTM", "GRU")


def recurrent(b: Builder) -> None:
    name = b.pick(lambda t: t.dtype in FLOATS and t.dim() in (1, 2, 3) and t.numel() > 0)
    if name is None or b.chance(0.3):
        name = b.make(b.shape((2, 3)), b.random.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16)))
    if name not in b.where or b.tensor(name).dim() == 0:
        return
    tensor, device = b.tensor(name), b.where[name]
    kind = b.random.choice(LAYERS)
    arguments = f"{name}, {b.random.choice((1, 2, 5))}, {b.seed_number()}"
    if tensor.dim() < 3 and b.chance(0.4):
        call = f"rnn('{kind}Cell', {arguments}, bias={b.chance(0.8)})"
    else:
        options = [f"num_layers={b.random.choice((1, 1, 2))}", f"bidirectional={b.chance(0.3)}"]
        options += [f"bias={b.chance(0.8)}", f"batch_first={b.chance(0.4)}"]
        if kind == "RNN" and b.chance(0.3):
            options.append("nonlinearity='relu'")
        if kind == "LSTM" and b.chance(0.2):
            options.append("proj_size=1")
        if tensor.dim() == 3 and b.chance(0.3):
            options.append("packed=True")
        call = f"rnn('{kind}', {arguments}, {', '.join(options)})"
    b.add(call, b.new_name(), b.new_name(), b.new_name(), uses=(name,), device=device)


def optimizer(b: Builder) -> None:
    """A fused optimizer, on one to three tensors of a device."""
    name = b.pick(trainable)
    if name is None:
        name = b.make(b.shape(), b.random.choice((torch.float32, torch.float64, torch.bfloat16)))
    if name not in b.where:
        return
    device = b.where[name]
    chosen = [name, *(b.pick(trainable, device) or name for _ in range(b.random.randint(0, 2)))]
    # Each once, and no two over the same memory: in which order a fused kernel takes them is its own affair.
    by_storage = {b.tensor(one).untyped_storage()._cdata: one for one in reversed(chosen)}
    tensors = tuple(reversed(by_storage.values()))
    kind = b.random.choice(("SGD", "Adam", "AdamW", "Adagrad"))
    options = [f"lr={b.random.choice(('0.1', '1e-3', '0.5'))}", f"weight_decay={b.random.choice(('0', '0.01'))}"]
    if kind == "SGD":
        # With 16-bit parameters the CPU's kernel reads momentum that nobody wrote: it differs from itself.
        has_momentum = b.chance(0.5) and all(b.tensor(one).dtype.itemsize > 2 for one in tensors)
        momentum = "0.9" if has_momentum else "0"
        options += [f"momentum={momentum}", f"nesterov={momentum != '0' and b.chance(0.5)}"]
    elif kind != "Adagrad":
        options += [f"amsgrad={b.chance(0.4)}", f"betas={b.random.choice(('(0.9, 0.999)', '(0.5, 0.9)'))}"]
    options.append(f"maximize={b.chance(0.2)}")
    code = f"optimize({kind!r}, [{', '.join(tensors)}], {b.random.randint(1, 3)}, {', '.join(options)})"
    b.add(code, b.new_name(), uses=tensors, writes=True, device=device)


def trainable(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOATS and tensor.is_contiguous() and not tensor.is_inference()


def inference(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    if b.chance(0.3):
        change = b.random.choice(("mul_(2)", "zero_()", "copy_({name}.flip(0))", "neg_()", "[..., :1].fill_(1)"))
        change = change if change.startswith("[") else f".{change}"
        code = f"with torch.inference_mode(): {name}{change.format(name=name)}"
        b.add(code, uses=(name,), writes=True, device=device)
        return
    made, other = b.new_name(), b.other(name)
    value = b.random.choice(
        (
            f"{name} * 2",
            f"{name} + {other}",
            f"torch.relu({name})",
            f"{name}.clone()",
            f"{name}[..., ::2]",
            f"{name}.reshape(-1)",
            f"{name}.sum({b.dim(tensor)})",
            f"{name}.float().softmax(-1)",
            f"{name}.to(torch.float64)",
            f"{name} @ {name}.mT",
            f"torch.cat([{name}, {name}])",
            f"{name}.detach().requires_grad_()",
            f"torch.zeros_like({name})",
        )
    )
    code = f"with torch.inference_mode(): {made} = {value}"
    b.add(code, made, uses=(name, other), device=device, assign=False)
