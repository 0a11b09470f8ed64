"""The stages between matches and a reconstruction, one file each."""
