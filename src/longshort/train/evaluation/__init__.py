"""How good a model is: its loss on held-out tokens, its answers to tasks, the retrieval suite, a checkpoint's table."""
