"""In place of MoGe: depth is 1 plus red, unknown where there is no red; the focal length is 0.8 widths."""

import torch

KEYS = {"points", "intrinsics", "depth", "mask"}


class MoGeModel(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, model_kwargs=None, **hf_kwargs):
        assert pretrained_model_name_or_path.is_file()
        return cls()

    def infer(
        self,
        image,
        fov_x=None,
        resolution_level=9,
        num_tokens=None,
        apply_mask=True,
        force_projection=True,
        use_fp16=True,
    ):
        assert image.ndim == 4 and 0 <= image.min() <= image.max() <= 1
        red, (height, width) = image[:, 0], image.shape[-2:]
        depth = torch.where(red > 0, 1 + red, torch.inf)
        intrinsics = torch.tensor([[0.8, 0, 0.5], [0, 0.8 * width / height, 0.5], [0, 0, 1]]).expand(len(red), 3, 3)
        return {
            "depth": depth,
            "intrinsics": intrinsics,
            "mask": red > 0,
            "points": depth[..., None].expand(-1, -1, -1, 3),
        }
