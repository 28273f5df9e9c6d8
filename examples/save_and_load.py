"""A fitted model as files that run no code: `config.json` and `model.safetensors`."""

# %% Fit something.
import tempfile
from pathlib import Path

import numpy as np
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

# %% Load it, perhaps elsewhere: the same answers to the last bit.
loaded = DUEClassifier.load(folder / "iris")
same = np.array_equal(model.predict_proba(X), loaded.predict_proba(X))
print(f"{loaded.predict(X[:3])}, the same probabilities: {same}")


# %% A file never says what code to run, so a network of your own is given again.
def small(shape):
    return FCResNet(shape[0], 16, depth=2)


own = DUEClassifier(extractor=small, epochs=5, random_state=0).fit(X, names)
own.save(folder / "own")
again = DUEClassifier.load(folder / "own", extractor=small)
print("with its own network, too:", np.array_equal(own.predict(X), again.predict(X)))
