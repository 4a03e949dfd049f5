"""Many runs: the trials of a comparison, its variants, their announcement, and training side by side or on Slurm."""
