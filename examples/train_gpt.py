"""Trains a small GPT on real English text, then proves that the device learned exactly what the CPU learns.

    python examples/train_gpt.py                    # on the neuron device, one to two minutes on two cores
    python examples/train_gpt.py --device cpu       # the same on the CPU
    python examples/train_gpt.py --dtype bfloat16   # with automatic mixed precision

Writes checkpoint.pt, loss.png and losses.json under --out. Exits with 1 when the device's losses differ from the CPU's.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from gpt import GPT, GPTConfig
from progress import Progress
from text import TextData, Tokenizer, batch, windows

PROMPT = 'The "with" statement'


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron", help="any PyTorch device")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"), help="folder for the results")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--context", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=512, help="tokens to learn from the text")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16 uses autocast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 keeps PyTorch's choice")
    parser.add_argument("--compare-steps", type=int, default=40, help="steps run again on both devices at the end")
    return parser.parse_args()


class Training:
    """Everything that one training run needs. The same arguments give the same run on every device."""

    def __init__(self, arguments: argparse.Namespace, data: TextData, device: torch.device) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        self.device = device
        self.data = data.to(device)
        config = GPTConfig(
            vocabulary_size=len(data.tokenizer.vocabulary),
            context=arguments.context,
            layers=arguments.layers,
            heads=arguments.heads,
            width=arguments.width,
        )
        # Made on the CPU and then moved, so that every device starts from the same numbers.
        self.model = GPT(config).to(device)
        matrices = [parameter for parameter in self.model.parameters() if parameter.dim() >= 2]
        others = [parameter for parameter in self.model.parameters() if parameter.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=arguments.learning_rate,
            betas=(0.9, 0.99),
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warmup_and_cosine(arguments.steps))
        self.places = torch.Generator().manual_seed(arguments.seed)
        self.autocast = arguments.dtype == "bfloat16"

    def steps(self, count: int) -> Iterator[torch.Tensor]:
        """Trains for `count` steps; gives the loss of each as a tensor on the device, without waiting for it."""
        self.model.train()
        for _ in range(count):
            tokens, targets = batch(self.data.train, self.arguments.batch, self.arguments.context, self.places)
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                loss = self.model.loss(tokens, targets)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            yield loss.detach()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        self.model.eval()
        batches = windows(self.data.held_out, self.arguments.context, self.arguments.batch)
        losses = [self.model.loss(tokens, targets) * tokens.shape[0] for tokens, targets in batches]
        return (torch.stack(losses).sum() / sum(tokens.shape[0] for tokens, _ in batches)).item()

    def save(self, path: Path) -> None:
        contents = {
            "config": asdict(self.model.config),
            "tokenizer": asdict(self.data.tokenizer),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        # Whole or not at all: a full disk or Ctrl-C leaves the checkpoint before as it was.
        unfinished = path.with_suffix(".unfinished")
        try:
            torch.save(contents, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def warmup_and_cosine(total: int, warmup: int = 30, floor: float = 0.1) -> Callable[[int], float]:
    """The factor of the learning rate at a step: a line up to 1, then half a cosine down to `floor`."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def memory_in_use(device: torch.device) -> str:
    if device.type == "cpu":
        return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of the process"
    used, peak = torch.accelerator.memory_allocated(), torch.accelerator.max_memory_allocated()
    return f"{used / 2**20:.0f} MiB in use, {peak / 2**20:.0f} MiB at most"


def train(training: Training) -> list[float]:
    arguments = training.arguments
    progress = Progress(arguments.steps)
    losses: list[float] = []
    waiting: list[torch.Tensor] = []
    start = time.perf_counter()
    for step, loss in enumerate(training.steps(arguments.steps), start=1):
        waiting.append(loss)
        # Reading a loss waits for the device: read several at once, so that Python can run ahead in between.
        if len(waiting) == 10 or step == arguments.steps:
            losses += torch.stack(waiting).tolist()
            waiting.clear()
            speed = step * arguments.batch * arguments.context / (time.perf_counter() - start)
            recent = sum(losses[-10:]) / len(losses[-10:])
            progress.update(step, f"loss {recent:.3f}  {speed:,.0f} tokens/s  {memory_in_use(training.device)}")
    return losses


def load(path: Path, arguments: argparse.Namespace, data: TextData, device: torch.device) -> Training:
    """A new Training from a file, as another process would make it."""
    saved = torch.load(path, map_location=device, weights_only=True)
    restored = Training(arguments, replace(data, tokenizer=Tokenizer(**saved["tokenizer"])), device)
    restored.model.load_state_dict(saved["model"])
    restored.optimizer.load_state_dict(saved["optimizer"])
    return restored


def sample(training: Training, prompt: str, count: int = 160) -> str:
    torch.manual_seed(training.arguments.seed)
    training.model.eval()
    tokens = training.data.tokenizer.encode(prompt).unsqueeze(0).to(training.device)
    return training.data.tokenizer.decode(training.model.generate(tokens, count)[0])


def plot(losses: list[float], held_out: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    smooth = 10
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot(range(1, len(losses) + 1), losses, color="tab:blue", alpha=0.3, label="training, each step")
    means = [sum(losses[max(0, i - smooth) : i]) / min(i, smooth) for i in range(1, len(losses) + 1)]
    axes.plot(range(1, len(losses) + 1), means, color="tab:blue", label=f"training, mean of {smooth} steps")
    axes.axhline(held_out, color="tab:orange", linestyle="--", label=f"held out, at the end: {held_out:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats a token)", title="Small GPT on the Python language reference")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def largest_difference(arguments: argparse.Namespace, data: TextData, device: torch.device) -> float:
    """Trains the first steps again on the CPU and on the device, from the same seed; compares every loss."""
    runs = []
    for place in (torch.device("cpu"), device):
        losses = list(Training(arguments, data, place).steps(arguments.compare_steps))
        runs.append(torch.stack(losses).cpu().double())
    difference = (runs[0] - runs[1]).abs()
    # A loss that is not a number must not pass for an equal one.
    return math.inf if difference.isnan().any() else difference.max().item()


def main() -> int:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=arguments.out):
            pass  # better to know now than after the training
    except OSError as error:
        print(f"error: cannot write to --out {arguments.out}: {error}", file=sys.stderr)
        return 1

    data = TextData.load(arguments.vocabulary)
    training = Training(arguments, data, device)
    print(
        f"{training.model.parameter_count():,} parameters on {device} with {torch.get_num_threads()} CPU threads, "
        f"{arguments.dtype}; {len(data.train):,} training tokens of {data.characters_per_token:.2f} characters"
    )
    untrained = training.held_out_loss()
    losses = train(training)

    held_out = training.held_out_loss()
    bits = held_out / math.log(2) / data.characters_per_token
    print(f"held-out loss {untrained:.3f} -> {held_out:.3f} nats a token ({bits:.2f} bits a character)")
    print(f"\n{sample(training, PROMPT)}\n")

    checkpoint = arguments.out / "checkpoint.pt"
    training.save(checkpoint)
    restored = load(checkpoint, arguments, data, device).held_out_loss()
    print(f"saved {checkpoint}; loaded again, its held-out loss is {restored:.3f}")
    if restored != held_out:
        print(f"error: the loaded model differs by {abs(restored - held_out):.3g}", file=sys.stderr)
        return 1

    plot(losses, held_out, arguments.out / "loss.png")
    (arguments.out / "losses.json").write_text(json.dumps({"held_out": held_out, "training": losses}))
    print(f"saved {arguments.out / 'loss.png'}")

    if device.type == "cpu":
        return 0
    print(
        f"training {arguments.compare_steps} steps again, on cpu and on {device.type}, to compare the losses ...",
        flush=True,
    )
    difference = largest_difference(arguments, data, device)
    print(f"largest loss difference between cpu and {device.type} over {arguments.compare_steps} steps: {difference:g}")
    return 0 if difference == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
