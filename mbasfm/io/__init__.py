"""Files that users bring, checked; nothing of ours is written here but the cache and settings."""
