"""Random programs: which steps, how often."""

from __future__ import annotations

import random

from . import catalogue_compute as compute
from . import catalogue_flow as flow
from . import catalogue_pointwise as pointwise
from . import catalogue_training as training
from . import catalogue_views as views
from .builder import MOST_TENSORS, Builder
from .program import Program

STEPS = 30
WEIGHTS = {
    flow.create: 8,
    pointwise.unary: 8,
    pointwise.binary: 12,
    pointwise.in_place: 12,
    pointwise.out: 6,
    pointwise.foreach: 4,
    views.view: 16,
    views.pieces: 2,
    views.write_through_view: 6,
    views.index: 7,
    views.index_write: 7,
    views.metadata: 3,
    compute.reduction: 7,
    compute.scan_or_sort: 4,
    compute.matrix: 6,
    compute.layer: 5,
    compute.join: 4,
    training.recurrent: 3,
    training.optimizer: 3,
    training.inference: 4,
    flow.cast: 5,
    flow.read: 6,
    flow.delete: 4,
}
WITH_GRAD = {flow.gradient: 8, flow.without_grad: 3}
WITH_HOST_RNG = {flow.random_numbers: 10}
WITH_DEVICES = {flow.move: 8}
WITH_STREAMS = {flow.switch_stream: 14}


def generate(seed: int, steps: int = STEPS) -> Program:
    """The program of a seed, of about `steps` steps. The same on every machine with the same torch."""
    builder = Builder(seed)
    weights = dict(WEIGHTS)
    weights.update(WITH_GRAD if builder.with_grad else {})
    weights.update(WITH_HOST_RNG if builder.host_rng else {})
    weights.update(WITH_DEVICES if builder.devices > 1 else {})
    weights.update(WITH_STREAMS if builder.streams > 1 else {})
    # Each program prefers some kinds of steps, so that rare combinations come together.
    taste = random.Random(seed + 1)
    chances = [weight * taste.choice((0.2, 1, 1, 3)) for weight in weights.values()]
    for _ in range(3):
        flow.create(builder)
    tries = 0
    while len(builder.steps) < steps and tries < 6 * steps:
        tries += 1
        builder.random.choices(list(weights), chances)[0](builder)
        while len(builder.where) > MOST_TENSORS:
            flow.delete(builder)
    builder.machine.close()
    return builder.program()
