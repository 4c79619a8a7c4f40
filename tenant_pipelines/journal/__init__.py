"""What happened: entries, the durable journal of one shard, and the fold to cell states."""
