"""Classical bundle adjustment by pycolmap, and what it needs."""
