"""In place of Metric3D: depth is 1 plus red, confidence red."""

import torch

dependencies = ["torch"]


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros(1))

    def inference(self, data):
        assert data["input"].shape[1:] == (3, 616, 1064)
        red = (data["input"][:, :1] * 58.395 + 123.675) / 255
        return self.offset + red, red, {}


def metric3d_vit_small(pretrain=False, **kwargs):
    assert not pretrain
    return Network()
