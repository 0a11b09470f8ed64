"""Made-up scenes with a known answer."""
