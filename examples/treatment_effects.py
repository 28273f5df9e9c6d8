"""Treatment effects: who benefits, and whom to refer to an expert."""

# %% 400 people; those with x₀ below −1 were never treated.
import warnings

import numpy as np

from due import DUECATE

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3))
T = np.where(X[:, 0] > -1, rng.integers(2, size=400), 0)
Y = np.sin(X[:, 1]) + T * (1 + X[:, 0]) + 0.2 * rng.normal(size=400)
model = DUECATE(random_state=0).fit(Y, T, X=X)

# %% Effects and their uncertainty, from one forward pass.
new = rng.normal(size=(200, 3))
truth = 1 + new[:, 0]
print(model.effect_inference(new).summary_frame().head(3).round(2))
low, high = model.effect_interval(new)
print(f"95 % intervals contain the true effect for {np.mean((low <= truth) & (truth <= high)):.0%}")
lowest, highest = model.ate_interval(new)
print(f"average effect {model.ate(new):.2f}, between {lowest:.2f} and {highest:.2f}")

# %% Refer the 10 % with the largest Var[f1 − f0]: the error on the others falls.
squares = (model.effect(new) - truth) ** 2
decided = np.argsort(model.uncertainty(new))[:180]
rmse, rmse_decided = np.sqrt(squares.mean()), np.sqrt(squares[decided].mean())
print(f"RMSE {rmse:.3f}, of those decided {rmse_decided:.3f}")

# %% How much each arm's training data informs a person; near 1 for both where the arms overlap.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # `overlap` warns of people who are far from everyone treated
    overlap = model.overlap([[0.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
print("untreated, treated\n", overlap.round(3))
