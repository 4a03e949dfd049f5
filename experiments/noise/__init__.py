"""Training under label noise and outliers: data, models, losses and the training of all of them at once."""
