"""From photographs to features, depth and matches, kept in the cache."""
