"""What a run saves to resume from: written whole or in shards, by one process or several, and read as a start."""
