"""What a run is told: the sections and keys of a configuration, their types, ranges and text, and the shipped ones."""
