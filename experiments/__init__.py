"""The experiments, each a recipe with its arms, claims, summary and figure, and what only they need."""
