"""Pure functions of tensors or arrays; no files, settings or log."""
