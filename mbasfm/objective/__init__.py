"""What is minimised: distributions, losses, one file per kind of residual."""
