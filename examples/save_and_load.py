"""Save a fitted model as `config.json` and `model.safetensors`, files that contain no code."""

# %% Fit a model.
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_iris

from due import DUEClassifier
from due.networks import FCResNet

X, y = load_iris(return_X_y=True)
names = np.array(["setosa", "versicolor", "virginica"])[y]  # labels may be of any type
model = DUEClassifier(epochs=20, random_state=0).fit(X, names)
folder = Path(tempfile.mkdtemp())

# %% Save it, and look at what was written.
model.save(folder / "iris")
print(sorted(file.name for file in (folder / "iris").iterdir()))

# %% Load it, perhaps on another machine: predictions are the same to the last bit.
loaded = DUEClassifier.load(folder / "iris")
same = np.array_equal(model.predict_proba(X), loaded.predict_proba(X))
print(f"{loaded.predict(X[:3])}, the same probabilities: {same}")


# %% Files contain no code, so give your own network again when you load.
def small(shape: torch.Size) -> FCResNet:
    return FCResNet(shape[0], 16, depth=2)


own = DUEClassifier(extractor=small, epochs=5, random_state=0).fit(X, names)
own.save(folder / "own")
again = DUEClassifier.load(folder / "own", extractor=small)
print("with its own network, too:", np.array_equal(own.predict(X), again.predict(X)))
