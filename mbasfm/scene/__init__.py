"""The scene folder: written, read back, exported."""
