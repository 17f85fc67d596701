"""The OpInfo sweep: every operator PyTorch has samples for, run on neuron and compared with the CPU bit by bit."""
