"""Steps about the program rather than the numbers: making, copying, reading and deleting tensors, gradients, streams."""

from __future__ import annotations

from .builder import DTYPES, FLOATS, Builder, is_float
from .observe import is_leaf

FACTORIES = (
    "torch.zeros({shape}, dtype={dtype}, device=devices[{device}])",
    "torch.ones({shape}, dtype={dtype}, device=devices[{device}])",
    "torch.full({shape}, {number}, device=devices[{device}])",
    "torch.full({shape}, {number}, dtype={dtype}, device=devices[{device}])",
    "torch.arange({count}, dtype={dtype}, device=devices[{device}])",
    "torch.arange(0, 1, 0.1, device=devices[{device}])",
    "torch.linspace(-1, 1, {count}, device=devices[{device}])",
    "torch.eye({count}, device=devices[{device}])",
    "torch.empty({shape}, dtype={dtype}, device=devices[{device}]).fill_(1)",
    "torch.tensor([[1, 2], [3, 4]], dtype={dtype}, device=devices[{device}])",
    "torch.tensor({number}, device=devices[{device}])",
    "torch.tril_indices({count}, {count}, device=devices[{device}])",
    "torch.empty_strided((3, 2), (1, 3), dtype={dtype}, device=devices[{device}]).zero_()",
)
RANDOM = (
    "torch.rand({shape}, device=devices[{device}])",
    "torch.randn({shape}, dtype={dtype}, device=devices[{device}])",
    "torch.randint(0, 9, {shape}, device=devices[{device}])",
    "torch.randperm({count}, device=devices[{device}])",
    "torch.normal(0.0, 1.0, {shape}, device=devices[{device}])",
)
RANDOM_LIKE = (
    "torch.rand_like({name})",
    "torch.randn_like({name})",
    "torch.bernoulli({name}.abs().clamp(0, 1))",
    "F.dropout({name}, 0.4)",
    "F.alpha_dropout({name}, 0.4)",
    "torch.multinomial({name}.abs() + 0.1, 1)",
    "F.rrelu({name}, training=True)",
    "torch.poisson({name}.abs())",
)
RANDOM_IN_PLACE = (
    "normal_() uniform_() bernoulli_(0.3) exponential_() random_(0,9) geometric_(0.5) log_normal_() cauchy_()".split()
)


def create(b: Builder) -> None:
    device = b.random.randrange(b.devices)
    dtype = b.random.choice(DTYPES)
    if b.chance(0.3):
        code = b.random.choice(FACTORIES).format(
            shape=b.shape(), dtype=dtype, device=device, number=b.number(dtype), count=b.random.randint(0, 9)
        )
        b.add(code, b.new_name(), device=device)
        return
    name = b.make(b.shape(), dtype, device)
    if b.with_grad and name in b.where and is_float(b.tensor(name)) and b.chance(0.6):
        b.add(f"{name}.requires_grad_()", uses=(name,), writes=True, device=device)


def random_numbers(b: Builder) -> None:
    if not b.host_rng:
        return
    name = b.pick()
    choose = b.random.random()
    if name is None or choose < 0.4:
        device = b.random.randrange(b.devices)
        code = b.random.choice(RANDOM).format(
            shape=b.shape(), dtype=b.random.choice(FLOATS), device=device, count=b.random.randint(0, 40)
        )
        b.add(code, b.new_name(), device=device)
    elif choose < 0.7:
        b.add(b.random.choice(RANDOM_LIKE).format(name=name), b.new_name(), uses=(name,), device=b.where[name])
    else:
        b.add(f"{name}.{b.random.choice(RANDOM_IN_PLACE)}", uses=(name,), writes=True, device=b.where[name])


def read(b: Builder) -> None:
    """Brings a value to the host, in the middle of what is queued."""
    name = b.pick()
    if name is None:
        return
    code = b.random.choice(
        (
            f"{name}.detach().cpu()",
            f"{name}.to('cpu', copy=True)",
            f"{name}.tolist()",
            f"{name}.sum().item()",
            f"{name}.reshape(-1)[0].item()",
            f"bool(({name} == {name}).all())",
            f"torch.equal({name}, {name})",
            f"torch.allclose({name}, {name}, equal_nan=True)",
            f"{name}.to('cpu', torch.float64)",
            f"{name}.t().cpu()",
            f"{name}.detach().clone().numpy(force=True).tolist()",
            f"repr({name}.detach().to('cpu'))",
            f"float({name})",
            f"int({name})",
            f"list({name}.shape)",
            f"{name}.nonzero().tolist()",
            f"{name}.detach()[..., ::2].cpu()",
        )
    )
    b.add(code, "read", uses=(name,), kind="read", device=b.where[name])


def delete(b: Builder) -> None:
    if len(b.where) > 3:
        b.delete(*b.random.sample(list(b.where), b.random.randint(1, 2)))


def cast(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    dtype = b.random.choice(DTYPES)
    other = b.random.choice(DTYPES)
    code = b.random.choice(
        (
            f"{name}.to({dtype})",
            f"{name}.to({dtype})",
            f"{name}.to({dtype}, copy=True)",
            f"{name}.float()",
            f"{name}.bfloat16().float()",
            f"{name}.type_as({name}.to({other}))",
            f"{name}.clone(memory_format=torch.contiguous_format)",
            f"{name}.clone()",
            f"torch.empty_like({name}).copy_({name})",
            f"torch.zeros_like({name}, dtype={dtype})",
            f"{name}.new_zeros(3)",
            f"{name}.new_full((2,), {b.number(b.tensor(name).dtype)})",
            f"host({tuple(b.tensor(name).shape)}, {dtype}, 'normal', {b.seed_number()}).to({name})",
            f"{name}.detach().cpu().clone().to(devices[{b.where[name]}])",
        )
    )
    b.add(code, b.new_name(), uses=(name,), device=b.where[name])


def move(b: Builder) -> None:
    """A copy to another device, or from one tensor to another across devices."""
    name = b.pick()
    if name is None or b.devices < 2:
        return
    device = b.where[name]
    other = 1 - device
    shape = b.tensor(name).shape
    target = b.pick(lambda t: t.shape == shape, other)
    if target is not None and b.chance(0.5):
        # A copy runs on the source's stream.
        b.add(f"{target}.copy_({name})", uses=(target, name), writes=True, device=device, other_device=other)
    else:
        b.add(f"move({name}, {other})", b.new_name(), uses=(name,), device=device, other_device=other)


def gradient(b: Builder) -> None:
    """A backward pass, into `.grad` or into new tensors."""
    name = b.pick(lambda t: t.requires_grad and not is_leaf(t))
    if name is None:
        return
    device = b.where[name]
    leaves = b.tensors(lambda t: t.requires_grad and is_leaf(t))
    retain = b.chance(0.3)
    if b.chance(0.5) or not leaves:
        code = b.random.choice(
            (
                f"{name}.backward(torch.ones_like({name}), retain_graph={retain})",
                f"{name}.sum().backward(retain_graph={retain})",
                f"{name}.backward()",
            )
        )
        done = b.add(code, uses=(name, *leaves), kind="backward", device=device)
        for leaf in leaves if done else ():
            if b.tensor(leaf).grad is not None and b.chance(0.2):
                b.add(f"{leaf}.grad", b.new_name(), uses=(leaf,), device=b.where[leaf])
        return
    leaf = b.random.choice(leaves)
    code = f"torch.autograd.grad({name}, {leaf}, torch.ones_like({name}), retain_graph={retain}, create_graph={b.chance(0.2)})[0]"
    b.add(code, b.new_name(), uses=(name, *leaves), kind="backward", device=b.where[leaf])


def without_grad(b: Builder) -> None:
    name = b.pick(lambda t: t.requires_grad)
    if name is None:
        return
    code = b.random.choice(
        (
            f"with torch.no_grad(): {name}.mul_(0.5)",
            f"with torch.no_grad(): {name}.copy_({name}.flip(0))",
            f"{name}.data.add_(1)",
            f"{name}.detach().neg_()",
            f"with torch.no_grad(): {name}.zero_()",
            f"{name}.retain_grad()",
        )
    )
    b.add(code, uses=(name,), writes=True, device=b.where[name])


def switch_stream(b: Builder) -> None:
    b.stream = b.random.randrange(b.streams)
