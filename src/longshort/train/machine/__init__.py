"""What a run asks of its machine: processes, devices, memory, precision, equal bits, peak FLOPs, stop requests."""
