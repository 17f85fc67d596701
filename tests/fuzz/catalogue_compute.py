"""Steps that combine many elements: reductions, scans, sorting, matrix products, layers, joining."""

from __future__ import annotations

from .builder import FLOATS, Builder

REDUCTIONS = "sum mean prod amax amin any all var std logsumexp norm nansum count_nonzero argmax argmin median".split()
SCANS = "cumsum cumprod cummax cummin logcumsumexp".split()


def reduction(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    dim = b.dim(tensor)
    op = b.random.choice(REDUCTIONS)
    keep = b.chance(0.3)
    choose = b.random.random()
    if op == "median":
        code = f"torch.median({name})"
    elif choose < 0.3 and op != "logsumexp":
        code = f"torch.{op}({name})"
    elif op == "norm":
        code = f"torch.norm({name}, {b.random.choice((1, 2, 3))}, {dim}, {keep})"
    elif op == "count_nonzero":
        code = f"torch.count_nonzero({name}, {dim})"
    elif choose < 0.4 and op in ("sum", "mean", "prod"):
        code = f"torch.{op}({name}, dtype={b.random.choice(FLOATS)})"
    elif choose < 0.5 and tensor.dim() >= 2 and op in ("sum", "mean", "amax", "var", "logsumexp", "any"):
        code = f"torch.{op}({name}, (0, -1), keepdim={keep})"
    else:
        code = f"torch.{op}({name}, {dim}, keepdim={keep})"
    b.add(code, b.new_name(), uses=(name,), device=device)


def scan_or_sort(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    dim = b.dim(tensor)
    choose = b.random.random()
    if choose < 0.4:
        op = b.random.choice(SCANS)
        if op in ("cummax", "cummin"):
            b.add(f"torch.{op}({name}, {dim})", b.new_name(), b.new_name(), uses=(name,), device=device)
        else:
            b.add(f"torch.{op}({name}, {dim})", b.new_name(), uses=(name,), device=device)
    elif choose < 0.8:
        size = tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else 1
        code = b.random.choice(
            (
                f"torch.sort({name}, {dim})",
                f"torch.sort({name}, {dim}, descending=True, stable=True)",
                f"torch.topk({name}, {b.random.randint(0, size)}, {dim})",
                f"torch.kthvalue({name}, 1, {dim})",
                f"torch.max({name}, {dim})",
                f"torch.min({name}, {dim})",
                f"torch.mode({name}, {dim})",
                f"torch.median({name}, {dim})",
                f"torch.aminmax({name})",
                f"torch.var_mean({name}, {dim})",
                f"torch.frexp({name})",
            )
        )
        b.add(code, b.new_name(), b.new_name(), uses=(name,), device=device)
    else:
        code = b.random.choice(
            (
                f"torch.argsort({name}, {dim}, stable=True)",
                f"torch.unique({name})",
                f"torch.diff({name}, dim={dim})",
                f"torch.bucketize({name}, torch.tensor([-1.0, 0.0, 1.0], device=devices[{device}]))",
                f"torch.histc({name}.float(), 5, -2, 2)",
                f"torch.bincount({name}.abs().reshape(-1) % 7)",
                f"torch.trapezoid({name}, dim={dim})",
            )
        )
        b.add(code, b.new_name(), uses=(name,), device=device)


def matrix(b: Builder) -> None:
    name = b.pick(lambda t: t.dim() in (1, 2, 3) and t.numel() > 0)
    if name is None:
        name = b.make(b.shape((2, 2, 3)), b.random.choice(FLOATS))
    tensor, device = b.tensor(name), b.where[name]
    inner = tensor.shape[-1]
    columns = b.random.choice((1, 2, 5, 8))
    if tensor.dim() == 3 and b.chance(0.4):
        shape: tuple[int, ...] = (tensor.shape[0], inner, columns)
    else:
        shape = (inner, columns) if b.chance(0.8) else (inner,)
    right = b.pick_or_make(
        lambda t: t.dim() > 0 and t.dtype == tensor.dtype and tuple(t.shape) == shape, shape, tensor.dtype, device
    )
    bias = b.pick_or_make(
        lambda t: t.dtype == tensor.dtype and tuple(t.shape) == (columns,), (columns,), tensor.dtype, device
    )
    code = b.random.choice(
        (
            f"torch.matmul({name}, {right})",
            f"{name} @ {right}",
            f"torch.mm({name}, {right})",
            f"torch.bmm({name}, {right})",
            f"torch.mv({name}, {right})",
            f"torch.addmm({bias}, {name}, {right}, beta={b.random.choice(('1', '0', '0.5'))}, alpha=2)",
            f"torch.baddbmm({bias}, {name}, {right})",
            f"F.linear({name}, {right}.t(), {bias})",
            f"torch.einsum('...ij,jk->...ik', {name}, {right})",
            f"torch.outer({name}.reshape(-1)[:9], {right}.reshape(-1)[:9])",
            f"torch.kron({name}, {bias})",
            f"torch.tensordot({name}, {right}, 1)",
            f"torch.dot({name}.reshape(-1)[:4], {name}.reshape(-1)[:4])",
            f"torch.cdist({name}, {name})",
            f"torch.linalg.norm({name})",
            f"torch.trace({name})",
            f"torch.linalg.det({name} @ {name}.mT)",
            f"torch.linalg.cholesky({name} @ {name}.mT)",
            f"torch.linalg.inv({name})",
            f"torch.linalg.solve({name} @ {name}.mT, {name})",
        )
    )
    b.add(code, b.new_name(), uses=(name, right, bias), device=device)


def layer(b: Builder) -> None:
    name = b.pick(lambda t: t.dtype in FLOATS and t.dim() > 0)
    if name is None:
        name = b.make(b.shape((2, 3)), b.random.choice(FLOATS))
    tensor, device = b.tensor(name), b.where[name]
    last, dim = tensor.shape[-1], b.dim(tensor)
    weight = b.pick_or_make(
        lambda t: t.dtype == tensor.dtype and tuple(t.shape) == (last,), (last,), tensor.dtype, device
    )
    labels = f"(make(({tensor.shape[0]},), torch.int64, 'positive', {b.seed_number()}, {device}) % {max(last, 1)})"
    code = b.random.choice(
        (
            f"torch.softmax({name}, {dim})",
            f"torch.log_softmax({name}, {dim})",
            f"F.layer_norm({name}, ({last},), {weight}, {weight})",
            f"F.layer_norm({name}, ({last},))",
            f"F.rms_norm({name}, ({last},), {weight})",
            f"F.normalize({name}, dim={dim})",
            f"F.glu({name}, {dim})",
            f"F.mse_loss({name}, {name}.detach() * 2)",
            f"F.smooth_l1_loss({name}, {name}.detach() + 1)",
            f"F.cross_entropy({name}, {labels})",
            f"F.nll_loss({name}, {labels}, reduction='none')",
            f"F.binary_cross_entropy_with_logits({name}, {name}.detach().sigmoid())",
            f"F.pad({name}, (1, 2))",
            f"F.pad({name}, (1, 0), value={b.number(tensor.dtype)})",
            f"F.scaled_dot_product_attention({name}, {name}, {name})",
            f"F.avg_pool1d({name}, 2)",
            f"F.max_pool2d({name}, 2)",
            f"F.interpolate({name}, scale_factor=2)",
            f"F.conv1d({name}, {name}[:, :, :1])",
            f"F.batch_norm({name}, None, None, training=True)",
            f"F.group_norm({name}, 1)",
            f"F.instance_norm({name})",
            f"F.cosine_similarity({name}, {name} + 1, dim={dim})",
            f"torch.cumsum(torch.softmax({name}, {dim}), {dim})",
        )
    )
    b.add(code, b.new_name(), uses=(name, weight), device=device)


def join(b: Builder) -> None:
    name = b.pick()
    if name is None:
        return
    tensor, device = b.tensor(name), b.where[name]
    others = [
        b.pick(lambda t: t.shape[1:] == tensor.shape[1:] and t.dim() == tensor.dim(), device) or name
        for _ in range(b.random.randint(1, 3))
    ]
    same = [n for n in others if b.tensor(n).shape == tensor.shape] or [name]
    parts, stacked = ", ".join([name, *others]), ", ".join([name, *same])
    code = b.random.choice(
        (
            f"torch.cat([{parts}])",
            f"torch.cat([{parts}], {b.dim(tensor)})",
            f"torch.stack([{stacked}], {b.dim(tensor)})",
            f"torch.hstack([{parts}])",
            f"torch.vstack([{stacked}])",
            f"torch.block_diag({name}, {name})",
            f"torch.meshgrid({name}, {name}, indexing='ij')[1]",
            f"{name}.repeat({b.random.randint(1, 2)}, *{(1,) * tensor.dim()})",
            f"torch.tile({name}, (2,))",
            f"torch.tril({name})",
            f"torch.triu({name}, 1)",
            f"torch.complex({name}, {name})",
            f"torch.diag_embed({name})",
            f"torch.cartesian_prod({name}, {name})",
        )
    )
    b.add(code, b.new_name(), uses=(name, *others), device=device)
