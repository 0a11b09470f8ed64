"""Files: photographs and the cache."""
