"""In place of Depth Anything 3: depth is 1 plus red, the focal length one width of what it sees."""

from pathlib import Path

import torch


class DepthAnything3(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kw):
        assert (Path(pretrained_model_name_or_path) / "config.json").is_file()
        return cls()

    def forward(
        self,
        image,
        extrinsics=None,
        intrinsics=None,
        export_feat_layers=None,
        infer_gs=False,
        use_ray_pose=False,
        ref_view_strategy="saddle_balanced",
    ):
        batch, views, channels, height, width = image.shape
        assert views == 1 and channels == 3 and height % 14 == width % 14 == 0 and max(height, width) == 504
        red = image[:, :, 0] * 0.229 + 0.485
        focal = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]])
        return {"depth": 1 + red, "depth_conf": 1 + red, "intrinsics": focal.expand(batch, 1, 3, 3)}
