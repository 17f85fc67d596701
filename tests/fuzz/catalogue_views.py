"""Steps that look at memory in another way, index it, and write through that."""

from __future__ import annotations

import torch

from .builder import DTYPES, Builder, broadcasts


def _slice(b: Builder, size: int) -> str:
    choose = b.random.random()
    if choose < 0.2:
        return ":"
    if choose < 0.35 and size > 0:
        return str(b.random.randrange(-size, size))
    low = b.random.randint(0, size)
    high = b.random.randint(low, size + 1)
    return f"{low}:{high}" + (f":{b.random.choice((2, 3))}" if b.chance(0.4) else "")


def basic_index(b: Builder, tensor: torch.Tensor) -> str:
    parts = [_slice(b, size) for size in tensor.shape[: b.random.randint(0, tensor.dim())]]
    if b.chance(0.15):
        parts.insert(b.random.randint(0, len(parts)), "None")
    if b.chance(0.15):
        parts.append("...")
    if b.chance(0.02):
        parts = ["99"]
    return ", ".join(parts) or "..."


def view(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    dim, rank = b.dim(tensor), tensor.dim()
    permuted = list(range(rank))
    b.random.shuffle(permuted)
    last = tensor.shape[-1] if rank else 1
    halves = [d for d in (1, 2, 4) if last % d == 0]
    choices = [
        f"{name}[{basic_index(b, tensor)}]",
        f"{name}[{basic_index(b, tensor)}]",
        f"{name}[{basic_index(b, tensor)}]",
        f"{name}.transpose({dim}, {b.dim(tensor)})",
        f"{name}.permute({permuted})",
        f"{name}.t()",
        f"{name}.mT",
        f"{name}.reshape(-1)",
        f"{name}.view(-1)",
        f"{name}.flatten()",
        f"{name}.unsqueeze({dim})",
        f"{name}.squeeze()",
        f"{name}.squeeze({dim})",
        f"{name}.expand({b.random.choice((2, 3))}, *{tuple(tensor.shape)})",
        f"{name}.narrow({dim}, 0, {b.random.randint(0, 3)})",
        f"{name}.select({dim}, {b.random.choice((0, -1))})",
        f"{name}.diagonal()",
        f"{name}.diagonal({b.random.randint(-2, 2)})",
        f"{name}.unfold({dim}, {b.random.choice((1, 2))}, {b.random.choice((1, 2, 3))})",
        f"{name}.unflatten(-1, (-1, {b.random.choice(halves)}))",
        f"{name}.movedim(0, -1)",
        f"{name}.detach()",
        f"{name}.view_as({name})",
        f"{name}.as_strided({_strided(b, tensor)})",
        f"{name}.real",
        f"{name}.imag",
        f"torch.view_as_real({name})",
        f"torch.view_as_complex({name})",
        f"{name}.conj()",
        f"{name}.conj().imag",
        f"{name}.H",
        f"{name}.view({b.random.choice([d for d in DTYPES if d is not torch.bool])})",
        f"{name}.data",
        f"torch.broadcast_to({name}, (2, *{tuple(tensor.shape)}))",
        f"{name}.swapaxes(0, -1)",
        f"torch.atleast_2d({name})",
        f"{name}.ravel()",
        f"torch.flip({name}, [0])",
        f"{name}.expand_as({name})",
        f"{name}.contiguous()",
    ]
    b.add(b.random.choice(choices), b.new_name(), uses=(name,), device=device)


def _strided(b: Builder, tensor: torch.Tensor) -> str:
    # Within what the tensor spans: the rest of its storage may never have been written.
    elements = (
        0 if tensor.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )
    size, stride, last = [], [], elements - 1
    shift = b.random.randint(0, min(3, max(last, 0)))
    offset = tensor.storage_offset() + shift
    room = last - shift
    for _ in range(b.random.randint(0, 3)):
        step = b.random.choice((0, 1, 1, 2, 3, 5))
        most = 4 if step == 0 else room // step + 1
        count = b.random.randint(0 if elements == 0 else 1, max(min(most, 6), 1))
        room -= step * max(count - 1, 0)
        size.append(count)
        stride.append(step)
    if b.chance(0.03):
        size = [*size, 10_000]
        stride = [*stride, 7]
    return f"{tuple(size)}, {tuple(stride)}, {offset}"


def pieces(b: Builder) -> None:
    """Several views at once."""
    name = b.pick(lambda t: t.dim() > 0 and 1 <= t.shape[0] <= 5)
    if name is None:
        return
    size = b.tensor(name).shape[0]
    names = [b.new_name() for _ in range(size)]
    code = b.random.choice((f"{name}.unbind()", f"{name}.split(1)", f"torch.chunk({name}, {size})"))
    b.add(f"{', '.join(names)}, = {code}", *names, uses=(name,), device=b.where[name], assign=False)


def write_through_view(b: Builder) -> None:
    """A chain that ends in a write, in one statement: `t[1:].t().mul_(2)`."""
    name = b.pick(lambda t: t.dim() > 0)
    if name is None:
        return
    tensor = b.tensor(name)
    number = b.number(tensor.dtype)
    index = basic_index(b, tensor)
    code = b.random.choice(
        (
            f"{name}[{index}] = {number}",
            f"{name}[{index}] += {number}",
            f"{name}[{index}].mul_({number})",
            f"{name}.transpose(0, -1).add_({number})",
            f"{name}.diagonal().fill_({number})",
            f"{name}.view(-1)[::2].zero_()",
            f"{name}.t()[0].copy_({name}.t()[-1])",
            f"{name}[{index}].neg_()",
            f"{name}.expand(2, *{tuple(tensor.shape)}).add_(1)",
            f"{name}[1:].copy_({name}[:-1])",
            f"{name}[1:].add_({name}[:-1])",
            f"{name}.real.mul_(2)",
            f"{name}.squeeze().clamp_(max=1)",
        )
    )
    b.add(code, uses=(name,), writes=True, device=b.where[name])


def _indices(b: Builder, size: int, device: int, count: int | None = None) -> str:
    """Indices into a dimension of the given size; now and then one that is out of range."""
    count = b.random.randint(0, 5) if count is None else count
    low, high = -size, size - 1
    if b.chance(0.04) or size == 0:
        high += 3
    values = [b.random.randint(low, high) for _ in range(count)]
    dtype = b.random.choice(("torch.int64", "torch.int64", "torch.int64", "torch.int32"))
    on = "'cpu'" if b.chance(0.1) else f"devices[{device}]"
    return f"torch.tensor({values}, dtype={dtype}, device={on})"


def _positive_indices(b: Builder, size: int, shape: tuple[int, ...], device: int) -> str:
    high = size + 2 if b.chance(0.05) or size == 0 else size
    return f"(make({shape}, torch.int64, 'positive', {b.seed_number()}, {device}) % {high})"


def _mask(b: Builder, shape: tuple[int, ...], device: int) -> str:
    return f"make({shape}, {b.random.choice(('torch.bool', 'torch.bool', 'torch.bool', 'torch.uint8'))}, 'small', {b.seed_number()}, {device})"


def advanced_index(b: Builder, tensor: torch.Tensor, device: int) -> str:
    choose = b.random.random()
    shape = tuple(tensor.shape)
    if choose < 0.3:
        return _mask(b, shape[: b.random.randint(1, len(shape))], device)
    first = _indices(b, shape[0], device)
    if choose < 0.6 or len(shape) == 1:
        return first
    count = b.random.choice((1, 2, 3))
    return b.random.choice(
        (
            f":, {_indices(b, shape[1], device)}",
            f"{_indices(b, shape[0], device, count)}, {_indices(b, shape[1], device, count)}",
            f"1:, {_indices(b, shape[1], device)}",
            f"..., {_indices(b, shape[-1], device)}",
            f"None, {first}",
        )
    )


def index(b: Builder) -> None:
    name = b.pick(lambda t: t.dim() > 0)
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    dim = b.random.randrange(tensor.dim())
    size, shape = tensor.shape[dim], tuple(tensor.shape)
    positive = f"torch.tensor({[b.random.randrange(max(size, 1)) for _ in range(3)]}, device=devices[{device}])"
    code = b.random.choice(
        (
            f"{name}[{advanced_index(b, tensor, device)}]",
            f"{name}[{advanced_index(b, tensor, device)}]",
            f"torch.index_select({name}, {dim}, {positive})",
            f"torch.gather({name}, {dim}, {_positive_indices(b, size, shape, device)})",
            f"torch.take({name}, {_positive_indices(b, tensor.numel(), (2, 3), device)})",
            f"torch.masked_select({name}, {_mask(b, shape, device)})",
            f"torch.nonzero({name})",
            f"{name}.masked_fill({_mask(b, shape, device)}, {b.number(tensor.dtype)})",
            f"torch.take_along_dim({name}, {_positive_indices(b, size, shape, device)}, {dim})",
            f"F.embedding({_positive_indices(b, shape[0], (2, 2), device)}, {name})",
            f"torch.scatter({name}, {dim}, {_positive_indices(b, size, shape, device)}, {name})",
            f"torch.scatter_add({name}, {dim}, {_positive_indices(b, size, shape, device)}, {name})",
            f"torch.index_add({name}, {dim}, {positive}, torch.index_select({name}, {dim}, {positive}), alpha=2)",
            f"torch.index_fill({name}, {dim}, {positive}, {b.number(tensor.dtype)})",
            f"torch.repeat_interleave({name}, 2, dim={dim})",
            f"torch.roll({name}, 1, {dim})",
            f"torch.nn.functional.one_hot({_positive_indices(b, 5, (3,), device)})",
        )
    )
    b.add(code, b.new_name(), uses=(name,), device=device)


def index_write(b: Builder) -> None:
    name = b.pick(lambda t: t.dim() > 0)
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    dim = b.random.randrange(tensor.dim())
    size, shape = tensor.shape[dim], tuple(tensor.shape)
    number = b.number(tensor.dtype)
    positive = f"torch.tensor({[b.random.randrange(max(size, 1)) for _ in range(2)]}, device=devices[{device}])"
    source = b.pick(lambda t: broadcasts(t.shape, tensor.shape) and t.dtype == tensor.dtype, device) or name
    code = b.random.choice(
        (
            f"{name}[{advanced_index(b, tensor, device)}] = {number}",
            f"{name}[{advanced_index(b, tensor, device)}] = {number}",
            f"{name}[{_mask(b, shape, device)}] = {source}",
            f"{name}[{_mask(b, shape, device)}] += 1",
            f"{name}[{positive}] = {name}[{positive}]",
            f"{name}.index_put_(({_indices(b, shape[0], device, 3)},), {name}[0], accumulate={b.chance(0.5)})",
            f"{name}.index_fill_({dim}, {positive}, {number})",
            f"{name}.index_copy_({dim}, {positive}, torch.index_select({name}, {dim}, {positive}))",
            f"{name}.index_add_({dim}, {positive}, torch.index_select({name}, {dim}, {positive}))",
            f"{name}.scatter_({dim}, {_positive_indices(b, size, shape, device)}, {number})",
            f"{name}.scatter_add_({dim}, {_positive_indices(b, size, shape, device)}, {source})",
            f"{name}.masked_fill_({_mask(b, shape, device)}, {number})",
            f"{name}.masked_scatter_({_mask(b, shape, device)}, {name}.clone())",
            f"{name}.put_({_positive_indices(b, tensor.numel(), (3,), device)}, {name}.reshape(-1)[:3].clone())",
            f"{name}.fill_diagonal_({number})",
            f"{name}.scatter_reduce_({dim}, {_positive_indices(b, size, shape, device)}, {name}.clone(), 'amax')",
        )
    )
    b.add(code, uses=(name, source), writes=True, device=device)


def metadata(b: Builder) -> None:
    """Steps that change what a tensor is, not what its memory holds."""
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    other = b.pick(lambda t: t.dtype == tensor.dtype, device) or name
    code, uses = b.random.choice(
        (
            (f"{name}.set_({other})", (name, other)),
            (f"{name}.data = {other}", (name, other)),
            (f"{name}.detach_()", (name,)),
            (f"{name}.swapdims_(0, -1)", (name,)),
            (f"{name}.as_strided_({_strided(b, tensor)})", (name,)),
            (f"{name}.requires_grad_()", (name,)),
            (f"{name}.grad = None", (name,)),
        )
    )
    if tensor.is_contiguous() and b.chance(0.3):  # any other may need memory that nobody has written to
        code, uses = f"{name}.resize_({tuple(max(size - 1, 0) for size in tensor.shape)})", (name,)
    b.add(code, uses=uses, writes=True, device=device)
