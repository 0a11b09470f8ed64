"""Stand-in for romatch: the second image shows the first one, moved by a quarter of its width."""

import torch

SHIFT = 0.25  # of the image's width, to the right


class RegressionMatcher:
    def match(self, im_A_input, im_B_input, *args, im_A_high_res=None, im_B_high_res=None, batched=True, device=None):
        assert im_A_input.mode == im_B_input.mode == "RGB"
        side = 48
        line = torch.linspace(-1 + 1 / side, 1 - 1 / side, side)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        shift = torch.tensor([2 * SHIFT, 0.0])
        warp = torch.cat([torch.cat([grid, grid + shift], -1), torch.cat([grid - shift, grid], -1)], 1)
        certainty = ((warp.abs() < 1).all(-1)).float() * 0.9
        return warp[None], certainty[None]


def roma_outdoor(
    device,
    weights=None,
    dinov2_weights=None,
    coarse_res=560,
    upsample_res=864,
    amp_dtype=torch.float16,
    symmetric=True,
    use_custom_corr=True,
    upsample_preds=True,
):
    assert weights == {"w": 1} and dinov2_weights == {"b": 2} and not use_custom_corr
    return RegressionMatcher()


def roma_indoor(
    device,
    weights=None,
    dinov2_weights=None,
    coarse_res=560,
    upsample_res=864,
    amp_dtype=torch.float16,
    symmetric=True,
    use_custom_corr=True,
    upsample_preds=True,
):
    return RegressionMatcher()
