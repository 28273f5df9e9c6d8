"""Classify digits, and recognise those of classes that were not in the training data."""

# %% Images of 0 to 4 are known; 5 to 9 never appear in training.
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from due import DUEClassifier

X, y = load_digits(return_X_y=True)
known = y < 5
X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], random_state=0)
X_strange = X[~known]

# %% A scikit-learn classifier: pipelines, grid search and cross-validation take it as it is.
model = DUEClassifier(epochs=20, random_state=0).fit(X_train, y_train)
accuracy = model.score(X_test, y_test)
print(f"accuracy on new images of 0 to 4: {accuracy:.3f}")

# %% One forward pass gives probabilities and how uncertain they are.
probabilities = model.predict_proba(X_strange)  # (N, 5)
entropy = model.uncertainty(X_strange)  # (N,), of those probabilities
distance = model.ood_score(X_strange)  # (N,), in [0, 1]: 0 on the training data, 1 far from it
print(f"median entropy: known {sorted(model.uncertainty(X_test))[len(X_test) // 2]:.3f}", end=", ")
print(f"never seen {sorted(entropy)[len(entropy) // 2]:.3f}")

# %% Does the score separate the two?
strange = [0] * len(X_test) + [1] * len(X_strange)
auroc = roc_auc_score(strange, [*model.ood_score(X_test), *distance])
print(f"AUROC of seen against never seen, by ood_score: {auroc:.3f}")
