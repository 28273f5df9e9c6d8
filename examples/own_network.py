"""Bring your own network: any `nn.Module` that turns a row into a vector."""

# %% A small residual convolutional network for 8 × 8 images; nothing in it is specific to `due`.
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from due import DUEClassifier
from due.lipschitz import report


class ConvNet(nn.Module):
    def __init__(self, channels: int = 16):
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, stride=2, padding=1)  # 8 × 8 → 4 × 4
        self.block = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.block(h).relu()  # the skip connection lets features preserve distances
        return h.flatten(1)


# %% `extractor` is called with the shape of a row; `c` bounds the Lipschitz constant of each layer.
images, y = load_digits(return_X_y=True)
X = images.reshape(-1, 1, 8, 8)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
torch.set_num_threads(1)
model = DUEClassifier(extractor=lambda shape: ConvNet(), epochs=5, random_state=0)
model.fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.3f}")

# %% Each layer with its largest singular value and its bound.
for layer in report(model.model_.f):
    print(layer)
