"""DUE without an estimator: your data, your optimiser, your loop."""

# %% Features whose distances are kept, inducing points among them, a GP on top.
import torch

from due import DUE, constrain
from due.data.toy import two_moons
from due.gp import InducingGP, Softmax, features, initialise
from due.networks import FCResNet

torch.manual_seed(0)
moons = two_moons(1000)
X, y = torch.tensor(moons.X, dtype=torch.float32), torch.tensor(moons.y)

f = constrain(FCResNet(2, 64, depth=3), c=0.95, example=X[:2])
h, _ = features(f, X)  # of 1,000 rows at random
Z, lengthscale = initialise(h, M=20)
model = DUE(f, InducingGP(Z, T=2, lengthscale=lengthscale), Softmax(2), n_data=len(X))

# %% `model(x, y)` is the loss.
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _epoch in range(10):
    for rows in torch.randperm(len(X)).split(64):
        optimizer.zero_grad()
        loss = model(X[rows], y[rows])
        loss.backward()
        optimizer.step()
print(f"−ELBO/N {loss.item():.3f}")

# %% `model.predict(x)` is the answer; in eval mode it is deterministic.
model.eval()
with torch.no_grad():
    accuracy = (model.predict(X).argmax(-1) == y).double().mean()
    near, far = model.predict(torch.tensor([[0.0, 1.0], [9.0, 9.0]]))
print(f"accuracy {accuracy:.3f}; on the data {near.max():.2f}, far from it {far.max():.2f}")
