"""The stages of placing queries in a map."""
