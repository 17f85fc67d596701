"""Differential fuzzing: random programs of tensor operations, run on cpu and on neuron and compared bit by bit.

`python -m tests.fuzz --programs 10000 --seed 0 --steps 30` is what `make fuzz` runs.
"""
