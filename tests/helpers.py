"""What several test files share."""

import torch


def assert_close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 1e-12, rtol: float = 1e-10) -> None:
    """Equal up to rounding in float64."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)
