"""Many runs: the variants of a comparison, their announcement, and how they train side by side or as jobs of Slurm."""
