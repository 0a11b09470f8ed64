"""Stand-in for mast3r.model."""

import torch


class AsymmetricMASt3R(torch.nn.Module):
    """Colours are descriptors."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kw):
        return cls()

    def forward(self, view1, view2):
        found = []
        for view in (view1, view2):
            assert view["img"].shape[2:] == tuple(view["true_shape"][0]) and float(view["img"].min()) >= -1
            colours = view["img"].permute(0, 2, 3, 1)
            longer = torch.cat([colours, torch.ones_like(colours[..., :1])], -1)
            unit = torch.nn.functional.normalize(longer, dim=-1)
            found.append({"desc": unit, "desc_conf": torch.full(colours.shape[:3], 4.0)})
        return found
