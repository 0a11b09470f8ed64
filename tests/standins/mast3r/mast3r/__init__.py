"""Stand-in for MASt3R."""
