"""What a run asks of its machine: processes and devices, precision, reproducible bits, peak FLOPs, stop requests."""
