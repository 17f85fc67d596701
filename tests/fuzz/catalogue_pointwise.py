"""Steps that work element by element: functional, in place, into `out=`, with numbers, and on lists."""

from __future__ import annotations

from .builder import DTYPES, Builder

ANY = (
    "neg abs sign sgn square clone positive isnan isinf isfinite logical_not conj_physical "
    "zeros_like ones_like nan_to_num angle real imag conj resolve_conj contiguous"
).split()
FLOATING = (
    "exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh sigmoid relu erf erfc erfinv "
    "floor ceil round trunc frac reciprocal lgamma digamma sinc i0 logit exp2 deg2rad signbit"
).split()
ACTIVATIONS = (
    "F.relu F.gelu F.silu F.elu F.selu F.leaky_relu F.hardtanh F.hardswish F.softplus F.mish F.logsigmoid "
    "F.hardsigmoid F.relu6 F.softsign F.tanhshrink F.softshrink F.celu"
).split()
IN_PLACE = (
    "neg_ abs_ sqrt_ exp_ relu_ tanh_ sigmoid_ zero_ square_ reciprocal_ sin_ floor_ sign_ nan_to_num_ logical_not_ "
    "round_ conj_physical_ erf_"
).split()
BINARY = (
    "torch.add torch.add torch.sub torch.mul torch.mul torch.div torch.maximum torch.minimum torch.fmax torch.atan2 "
    "torch.eq torch.ne torch.lt torch.le torch.gt torch.ge torch.logical_and torch.logical_or torch.logical_xor "
    "torch.hypot torch.copysign torch.xlogy torch.nextafter torch.heaviside torch.logaddexp torch.bitwise_and "
    "torch.bitwise_or torch.bitwise_xor torch.isclose torch.fmin"
).split()
OPERATORS = "+ - * / + * == < >= & | ^".split()
BINARY_IN_PLACE = (
    "add_ sub_ mul_ div_ copy_ eq_ lt_ maximum atan2_ bitwise_and_ logical_or_ copysign_ add_ mul_".split()
)
FOREACH = "add sub mul div maximum".split()
FOREACH_UNARY = "exp sqrt neg abs tanh sigmoid reciprocal zero_ exp_ neg_ sqrt_".split()


def unary(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor = b.tensor(name)
    op = b.random.choice(ANY if b.chance(0.35) else FLOATING if b.chance(0.7) else ACTIVATIONS)
    call = f"{op}({name})" if op.startswith("F.") else f"torch.{op}({name})"
    if op in ("contiguous",):
        call = f"{name}.contiguous()"
    if b.chance(0.08):
        call = b.random.choice(
            (
                f"torch.clamp({name}, {b.number(tensor.dtype)}, {b.number(tensor.dtype)})",
                f"torch.clamp_min({name}, {b.number(tensor.dtype)})",
                f"torch.round({name}, decimals=1)",
                f"torch.pow({name}, {b.random.choice(('2', '3', '0.5', '-1', '2.5'))})",
                f"torch.pow(2, {name})",
                f"torch.floor_divide({name}, 3)",
                f"torch.remainder({name}, {b.random.choice(('3', '-2.5', '0'))})",
                f"torch.fmod({name}, 2)",
                f"torch.div({name}, 3, rounding_mode={b.random.choice(('trunc', 'floor', None))!r})",
                f"torch.rsub({name}, 2)",
                f"1 / {name}",
                f"2 - {name}",
            )
        )
    b.add(call, b.new_name(), uses=(name,), device=b.where[name])


def binary(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    right = b.other(name)
    left, device = name, b.where[name]
    if b.chance(0.25):
        left, right = right, left
    choose = b.random.random()
    if choose < 0.3:
        code = f"{left} {b.random.choice(OPERATORS)} {right}"
    elif choose < 0.38:
        code = f"torch.add({left}, {right}, alpha={b.random.choice(('2', '0.5', '-1', '1j'))})"
    elif choose < 0.45:
        third = b.other(name)
        op = b.random.choice(("addcmul", "addcdiv", "lerp", "where"))
        code = {
            "addcmul": f"torch.addcmul({left}, {right}, {third}, value={b.random.choice(('2', '0.5'))})",
            "addcdiv": f"torch.addcdiv({left}, {right}, {third})",
            "lerp": f"torch.lerp({left}, {right}, {third})",
            "where": f"torch.where({name} > 0, {right}, {third})",
        }[op]
        b.add(code, b.new_name(), uses=(left, right, third), device=device)
        return
    else:
        op = b.random.choice(BINARY)
        if op.startswith("torch.logical"):
            left, right = name, right if left == name else left  # a host number in front is refused, as on cuda
        code = f"{op}({left}, {right})"
    b.add(code, b.new_name(), uses=(left, right), device=device)


def in_place(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    choose = b.random.random()
    if choose < 0.25:
        b.add(f"{name}.{b.random.choice(IN_PLACE)}()", uses=(name,), writes=True, device=device)
    elif choose < 0.35:
        number = b.number(tensor.dtype)
        code = b.random.choice(
            (
                f"{name}.fill_({number})",
                f"{name}.clamp_(-1, 1)",
                f"{name}.add_({number})",
                f"{name}.mul_({number})",
                f"{name}.pow_(2)",
                f"{name}.masked_fill_({name} > 0, {number})",
                f"{name}.addcmul_({name}, {name}, value=0.5)",
                f"{name}.copy_(host({tuple(tensor.shape)}, {b.random.choice(DTYPES)}, 'normal', {b.seed_number()}))",
                f"{name}[...] = {number}",
                f"{name} += {number}",
                f"{name}.t_()",
                f"{name}.unsqueeze_(0)",
                f"{name}.squeeze_()",
            )
        )
        b.add(code, uses=(name,), writes=True, device=device)
    else:
        right = b.other(name)
        op = b.random.choice(BINARY_IN_PLACE)
        code = f"torch.maximum({name}, {right}, out={name})" if op == "maximum" else f"{name}.{op}({right})"
        if op == "copy_" and right not in b.where:
            code = f"{name}.add_({right}, alpha=2)"
        b.add(code, uses=(name, right), writes=True, device=device)


def out(b: Builder) -> None:
    """Results into a tensor that is there: of the right size or not, and sometimes one of the inputs."""
    name = b.pick()
    if name is None:
        return
    device = b.where[name]
    right = b.other(name)
    code, uses = b.random.choice(
        (
            (f"torch.add({name}, {right}, out=%s)", (name, right)),
            (f"torch.mul({name}, {right}, out=%s)", (name, right)),
            (f"torch.eq({name}, {right}, out=%s)", (name, right)),
            (f"torch.sub({name}, {right}, out=%s)", (name, right)),
            (f"torch.exp({name}, out=%s)", (name,)),
            (f"torch.neg({name}, out=%s)", (name,)),
            (f"torch.sum({name}, 0, out=%s)", (name,)),
            (f"torch.amax({name}, -1, out=%s)", (name,)),
            (f"torch.cumsum({name}, 0, out=%s)", (name,)),
            (f"torch.cat([{name}, {name}], out=%s)", (name,)),
            (f"torch.stack([{name}, {name}], out=%s)", (name,)),
            (f"torch.matmul({name}, {name}, out=%s)", (name,)),
            (f"torch.index_select({name}, 0, torch.tensor([0], device={name}.device), out=%s)", (name,)),
            (f"torch.clamp({name}, -1, 1, out=%s)", (name,)),
            (f"torch.tril({name}, out=%s)", (name,)),
            ("torch.arange(5, out=%s)", ()),
            (f"torch.where({name} > 0, {name}, {right}, out=%s)", (name, right)),
        )
    )
    if b.chance(0.3):
        given = name
    elif b.chance(0.5):
        given = b.pick(device=device) or name
    else:
        given = b.new_name()
        shape = b.random.choice(((0,), tuple(b.tensor(name).shape), (3,)))
        dtype = b.tensor(name).dtype
        b.add(f"torch.zeros({shape}, dtype={dtype}, device=devices[{device}])", given, device=device)
    b.add(code % given, uses=(*uses, given), writes=True, device=device)


def foreach(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    device = b.where[name]
    count = b.random.randint(1, 4)
    left = [b.pick(device=device) or name for _ in range(count)]
    if b.chance(0.5):
        left = [n for n in left if b.tensor(n).dtype == b.tensor(name).dtype] or [name]
    lefts = "[" + ", ".join(left) + "]"
    writes = b.chance(0.5)
    choose = b.random.random()
    if choose < 0.3:
        op = b.random.choice(FOREACH_UNARY)
        code, uses, writes = f"torch._foreach_{op}({lefts})", tuple(left), op.endswith("_")
    elif choose < 0.55:
        op = b.random.choice(FOREACH) + ("_" if writes else "")
        code, uses = f"torch._foreach_{op}({lefts}, {b.number(b.tensor(name).dtype)})", tuple(left)
    elif choose < 0.85:
        right = [b.partner(n) for n in left]
        rights = "[" + ", ".join(right) + "]"
        op = b.random.choice(FOREACH)
        if b.chance(0.2):
            code = f"torch._foreach_addcmul{'_' if writes else ''}({lefts}, {rights}, {rights}, 0.5)"
        elif b.chance(0.2):
            code = f"torch._foreach_lerp{'_' if writes else ''}({lefts}, {rights}, 0.25)"
        else:
            code = f"torch._foreach_{op}{'_' if writes else ''}({lefts}, {rights})"
        uses = (*left, *right)
    else:
        code, uses, writes = f"torch._foreach_norm({lefts}, {b.random.choice(('1', '2', 'inf'))})", tuple(left), False
    if writes:
        b.add(code, uses=uses, writes=True, device=device)
        return
    names = [b.new_name() for _ in left]
    target = ", ".join(names) + ","
    b.add(f"{target} = {code}", *names, uses=uses, device=device, assign=False)
