"""Experiments and checks that use the whole package."""
