"""The command line: runs a script on two devices and reports where they differ."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torch_neuronx.parity.compare import Comparison, compare
from torch_neuronx.parity.launch import DEVICE_PLACEHOLDER, DeviceRun, Job, ScriptRunError, run_on
from torch_neuronx.parity.text import LineReader

EQUAL, DIFFERENT, NOT_COMPARED = 0, 1, 2

_SOURCES = {
    "loss": "losses at backward()",
    "parameter": "parameters at the end",
    "logged": "values given to parity.log()",
    "message": "numbers in log messages",
    "stdout": "numbers on stdout",
    "stderr": "numbers on stderr",
}
_MANY = 10  # lines shown of a long list
# A script with one of these chooses its device by itself; a default device would get in its way: for example, a
# DataLoader that shuffles does not work under one, on any accelerator.
_CHOOSES_DEVICE = re.compile(
    r"""\bdevice\s*=|--device|torch\.device\(|torch\.accelerator|\baccelerate\b|["'](?:cuda|neuron)\b|\.(?:cuda|neuron)\("""
)

_EPILOG = f"""\
{DEVICE_PLACEHOLDER} in an argument of the script stands for the device:
    python -m torch_neuronx.parity train.py --device {DEVICE_PLACEHOLDER} --out runs/{DEVICE_PLACEHOLDER}

Compared are: every loss on which backward() is called and the parameters after the last step of each optimizer (bit by
bit), what the script gives to torch_neuronx.parity.log(name, value), log messages, and the numbers in what it prints.
Times, rates, memory sizes, addresses and the name of the device are cut out of lines first; --ignore cuts out more.

exit codes: 0 equal, 1 different, 2 could not be compared (a run failed, said nothing, or did not use the device)
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.parity",
        description="Runs a script once per device and reports the largest difference in what it says.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--devices", nargs=2, default=["cpu", "neuron"], metavar=("A", "B"), help="default: cpu neuron")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="T", help="allow |a-b| <= T * max(1, |a|, |b|)")
    parser.add_argument("--seed", type=int, default=0, help="of Python, numpy and torch, set before the script starts")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of both runs; default: all cores")
    parser.add_argument(
        "--device-random", action="store_true", help="the device draws its own random numbers, not the CPU's"
    )
    parser.add_argument(
        "--device-autocast",
        action="store_true",
        help="torch.autocast follows the lists for accelerators on the device, not those for the CPU",
    )
    parser.add_argument(
        "--default-device",
        choices=["auto", "always", "never"],
        default="auto",
        help="torch.set_default_device: auto sets it unless the script's text chooses a device",
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="REGEX", help="cut matches out of each line")
    parser.add_argument("--no-default-ignore", action="store_true", help="cut nothing else out")
    parser.add_argument("--no-watch", action="store_true", help="compare only what the script prints and parity.log()")
    parser.add_argument("--allow-unused", action="store_true", help="do not fail when the device was not used")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for each run")
    parser.add_argument("--show-output", action="store_true", help="print what the runs printed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="handed to the script")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 equal, 1 different, 2 could not be compared."""
    options = make_parser().parse_args(argv)
    if not options.is_module and not Path(options.script).is_file():
        return _stop(f"no such script: {options.script}")
    try:
        reader = LineReader(options.ignore, use_defaults=not options.no_default_ignore)
    except ValueError as error:
        return _stop(f"--ignore: {error}")
    job = Job(
        script=options.script,
        arguments=options.arguments,
        is_module=options.is_module,
        seed=options.seed,
        threads=options.threads or len(os.sched_getaffinity(0)),
        host_random_numbers=not options.device_random,
        host_autocast=not options.device_autocast,
        set_default_device=_wants_default_device(options),
        watch=not options.no_watch,
        timeout=options.timeout,
    )
    runs = []
    for device in options.devices:
        print(f"{options.script} on {device} ...", end=" ", flush=True)
        try:
            run = run_on(device, job)
        except ScriptRunError as error:
            print("stopped")
            return _stop(str(error))
        print(f"exit code {run.exit_code} after {run.seconds:.1f} s", flush=True)
        if options.show_output:
            print(run.stdout, end="")
            print(run.stderr, end="", file=sys.stderr)
        runs.append(run)

    failure = _failure(runs)
    if failure is not None:
        return _stop(failure)
    comparison = compare(runs[0], runs[1], options.tolerance, reader)
    _report(comparison, runs, job, options.tolerance)
    if options.json is not None:
        options.json.write_text(json.dumps(_as_dictionary(comparison, runs, job, options.tolerance), indent=2) + "\n")
    if comparison.values == 0 and comparison.equal:
        return _stop("nothing to compare: the script printed no number and trained nothing")
    unused = [run.device for run in runs if run.device != "cpu" and run.bytes_allocated == 0]
    if unused and not options.allow_unused:
        advice = "" if job.set_default_device else "; --default-device always puts new tensors there"
        return _stop(f"the script made no tensor on {' or '.join(unused)}, so this compared nothing{advice}")
    return EQUAL if comparison.equal else DIFFERENT


def _wants_default_device(options: argparse.Namespace) -> bool:
    if options.default_device != "auto":
        return options.default_device == "always"
    if any(DEVICE_PLACEHOLDER in argument for argument in options.arguments) or options.is_module:
        return False
    return _CHOOSES_DEVICE.search(Path(options.script).read_text(errors="replace")) is None


def _failure(runs: list[DeviceRun]) -> str | None:
    failed = [run for run in runs if run.exit_code != 0]
    if not failed:
        return None
    codes = ", ".join(f"{run.exit_code} on {run.device}" for run in runs)
    tails = (f"--- last lines on {run.device}\n{_tail(run.stderr or run.stdout)}" for run in failed)
    return "the script failed: exit code " + codes + "\n" + "\n".join(tails)


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.rstrip().split("\n")[-lines:])


def _stop(reason: str) -> int:
    print(f"not compared: {reason}", file=sys.stderr)
    return NOT_COMPARED


def _report(comparison: Comparison, runs: list[DeviceRun], job: Job, tolerance: float) -> None:
    random_numbers = "the CPU's random numbers" if job.host_random_numbers else "each device's own random numbers"
    autocast = "the CPU's" if job.host_autocast else "each device's own"
    print(f"seed {job.seed}, {job.threads} CPU threads, {random_numbers}, {autocast} autocast rules")
    for source, count in comparison.compared.items():
        print(f"  {count:>12,} {_SOURCES.get(source, source)}")
    for label, largest in (("absolute", comparison.largest_absolute), ("relative", comparison.largest_relative)):
        if largest is None:
            print(f"largest {label} difference: 0")
        else:
            print(f"largest {label} difference: {getattr(largest, label):.6g}\n  {largest}")
    if comparison.different:
        beyond = f", {comparison.beyond_tolerance:,} of them beyond the tolerance of {tolerance:g}" if tolerance else ""
        print(f"{comparison.different:,} of {comparison.values:,} numbers differ{beyond}")
    if comparison.first is not None:
        print(f"the first of them: {comparison.first}")
    for is_failure, title in ((True, "said on one device only"), (False, "on one device's stderr only, no failure")):
        lines = [item for item in comparison.unmatched if item.is_failure is is_failure]
        if lines:
            print(f"{title}:")
        for item in lines[:_MANY]:
            print(f"  {item.device}, {item.where}: {item.text}")
        if len(lines) > _MANY:
            print(f"  ... and {len(lines) - _MANY:,} more")
    if comparison.equal:
        print(f"equal: {runs[0].device} and {runs[1].device} agree" + (f" within {tolerance:g}" if tolerance else ""))
    else:
        print(
            f"different: does the script give the same twice on one device? try --devices {runs[0].device} "
            f"{runs[0].device}"
        )


def _as_dictionary(comparison: Comparison, runs: list[DeviceRun], job: Job, tolerance: float) -> dict[str, object]:
    return {
        "script": job.script,
        "equal": comparison.equal,
        "tolerance": tolerance,
        "seed": job.seed,
        "threads": job.threads,
        "runs": [
            {"device": run.device, "seconds": run.seconds, "bytes_allocated": run.bytes_allocated} for run in runs
        ],
        "comparison": asdict(comparison),
    }
