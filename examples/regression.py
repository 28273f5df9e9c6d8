"""Error bars that grow away from the data."""

# %% Two clusters of x, with no data in between.
import numpy as np

from due import DUERegressor

rng = np.random.default_rng(0)
X = np.concatenate([rng.uniform(-6, -2, 100), rng.uniform(2, 6, 100)])[:, None]
y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)

# %% Up to 5,000 rows are trained on all at once, more in batches; `history_` has the bound.
model = DUERegressor(random_state=0).fit(X, y)
print(f"bound: {model.history_['bound']}, epochs: {len(model.history_['loss'])}")

# %% Mean and standard deviation of a new observation, noise included.
x = np.array([[-4.0], [0.0], [4.0], [30.0]])
mean, std = model.predict(x, return_std=True)
for point, m, s in zip(x[:, 0], mean, std, strict=True):
    print(f"x = {point:5.1f}: {m:6.2f} ± {s:.2f}")

# %% Two parts: noise, which more data would not reduce, and uncertainty about the function.
details = model.uncertainty_details(x)
print("noise    ", np.sqrt(details.aleatoric).round(2))
print("function ", np.sqrt(details.epistemic).round(2))

# %% Intervals, here of 90 %, and joint draws of whole curves.
lower, upper = model.predict_interval(X, alpha=0.1)
inside = np.mean((lower <= y) & (y <= upper))
curves = model.sample_y(np.linspace(-6, 6, 50)[:, None], n_samples=3)  # (50, 3)
print(f"training points within their 90 % interval: {inside:.2f}; curves: {curves.shape}")
