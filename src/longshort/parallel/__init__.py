"""Training with one model spread over several processes: their mesh, the sharding, and the local part of a tensor."""
