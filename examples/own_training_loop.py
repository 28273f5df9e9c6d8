"""DUE without an estimator: train it by a recipe, or in your own loop."""

# %% Features that preserve distances, a GP on them, and a likelihood of classes.
import torch

from due import DUE, Recipe, Table, constrain, fit
from due.data.toy import two_moons
from due.gp import InducingGP, Softmax
from due.networks import FCResNet
from due.predictor import ClassPredictor
from due.rows import Scale

torch.manual_seed(0)
moons = two_moons(1000)
X, y = torch.tensor(moons.X, dtype=torch.float32), torch.tensor(moons.y)
f = constrain(FCResNet(2, 64, depth=3), c=0.95, example=X[:2])
model = DUE(f, InducingGP(torch.zeros(20, 64), T=2), Softmax(2))

# %% `fit` places the 20 inducing points among the features, and trains.
history = fit(model, Table(X, y), Recipe(lr=5e-3, batch_size=64, epochs=10))
print(f"−ELBO/N {history.loss[-1]:.3f}")

# %% The predictor takes raw rows, and answers with probabilities, entropies and the OOD score.
predictor = ClassPredictor(model.predictor(), Scale.identity((2,)))
with torch.no_grad():
    accuracy = (predictor(X).probabilities.argmax(-1) == y).double().mean()
    near, far = predictor(torch.tensor([[0.0, 1.0], [9.0, 9.0]])).probabilities
print(f"accuracy {accuracy:.3f}; on the data {near.max():.2f}, far from it {far.max():.2f}")

# %% `model(x, y)` is a plain loss, so any loop can train it further.
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.train()
for rows in torch.randperm(len(X)).split(64):
    optimizer.zero_grad()
    loss = model(X[rows], y[rows])
    loss.backward()
    optimizer.step()
print(f"−ELBO/N after an epoch of our own {loss.item():.3f}")
