"""Networks for treatment effects that DUE is compared with."""

from typing import Any

import numpy as np
import torch

from due.estimators.effect_network import EffectNetwork, UncertainEffectNetwork
from due.estimators.network import estimator
from due.methods.cevae import CEVAENetwork
from due.methods.dklite import DKLITENetwork
from due.methods.method import Method
from due.methods.tarnet import TARNetwork
from due.rows.checks import (
    argument,
    at_least,
    check_fraction,
    check_not_negative,
    check_positive,
    check_whole,
    or_none,
)
from due.rows.scale import fit_covariate_scale, fit_scale
from due.rows.source import Table
from due.rows.study import Study
from due.storage.estimator import Tensors
from due.storage.model import load_state
from due.training import Recipe


@estimator
class Rival(EffectNetwork):
    """Abstract: people in the order in which they come; saved networks are rebuilt by arguments."""

    def _tables(self, study: Study, validation: Study | None, seed: int) -> tuple[Table, Table]:
        everyone = study.join(validation)
        self.scale_ = fit_covariate_scale(everyone.X)
        self.y_scale_ = fit_scale(everyone.y[:, None], np.ones(len(everyone.y)))
        if validation is None:
            study, validation = study.hold_out(self.validation_fraction, seed)
        return self._table(study), self._table(validation)

    def _table(self, study: Study) -> Table:
        rows = np.column_stack([self.scale_(study.X), study.t])
        y = self.y_scale_(study.y[:, None])
        return Table(torch.as_tensor(rows).float(), torch.as_tensor(y).float())

    def _rebuild(self, config: dict[str, Any], tensors: Tensors) -> Method:
        return load_state(self._build(torch.Size(self.row_shape_), 1, 1), tensors)


@estimator
class TARNet(Rival):
    """Treatment-agnostic representation network, with the encoder of DUE's experiment.

    The encoder is a linear layer and two residual ones of `width`; each arm goes on with two
    residual layers of half that width and the parameters of a mixture of normal distributions.
    `DeepEnsemble(TARNet(), 5)` is the rival of the paper's Table 3, and
    `MCDropout(TARNet(components=1, dropout=0.5, epochs=2000, recipe=Recipe(patience=50)), 100)` is
    BTARNet. By default it trains with Adam at 1e-3 on batches of 100 for at most 500 epochs, with
    an L2 penalty of ½ (1 − dropout) / N and a patience of 20.

    Parameters
    ----------
    components
        Number of normal distributions in the density of each arm; 1 is a plain normal.
    width
        Of the encoder.
    dropout
        Share of the units dropped before each layer but the first.
    c
        Bound on the Lipschitz constant of each layer but the densities; None leaves them free.
    epochs, batch_size, lr, recipe, validation_fraction, random_state, device, verbose
        As in `due.estimators.Trained`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=200)
    >>> model = TARNet(width=50, epochs=40, lr=5e-3, random_state=0).fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.5)
    True
    """

    components: int = argument(2, check_whole)
    width: int = argument(200, at_least(2))  # each arm has half of it
    dropout: float = argument(0.2, check_fraction)
    c: float | None = argument(0.95, or_none(check_positive))

    def _build(self, shape: torch.Size, T: int, n: int) -> TARNetwork:
        return TARNetwork(shape[0] - 1, self.width, self.components, self.dropout, self.c)

    def _default_recipe(self, n: int) -> Recipe:
        return Recipe(epochs=500, patience=20).over(effect_recipe(self.dropout, n))


@estimator
class CEVAE(Rival):
    """Causal effect variational autoencoder; `MCDropout(CEVAE(beta=0.1), 100)` is BCEVAE.

    The loss is β KL(q(z | x, t, y) ‖ N(0, I)) − E_q[log p(x | z) + log p(t | z) + log p(y | t, z)]
    − log q(t | x) − log q(y | x, t), a mean over people, with one draw of z; p(x | z) is Bernoulli
    for columns of two values and normal for the others, y is normal with a variance that depends
    on z and t. The epoch is the one that predicts the held-out outcomes best. At prediction, where
    only x is known, z is the mean over t of the means of q(z | x, t, ȳ_t): t is weighted by
    q(t | x), and ȳ_t is the mean of q(y | x, t). Both outcomes are the means of p(y | t, z) at that
    z. Under `MCDropout` a pass draws t and z. By default it trains with Adam at 1e-3 on batches of
    100 for at most 1,000 epochs, with an L2 penalty of ½ (1 − dropout) / N and a patience of 50.

    Parameters
    ----------
    latent
        Dimension of z.
    beta
        Weight of the divergence, β; 1 is the bound itself.
    width
        Of the hidden layers, with ELU.
    dropout
        Share of the units dropped after each hidden layer; before the outputs of y it is 0.5,
        unless dropout is 0.
    epochs, batch_size, lr, recipe, validation_fraction, random_state, device, verbose
        As in `due.estimators.Trained`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=200)
    >>> model = CEVAE(width=50, latent=4, lr=5e-3, epochs=100, random_state=0).fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.5)
    True
    """

    latent: int = argument(32, check_whole)
    beta: float = argument(1.0, check_not_negative)
    width: int = argument(200, check_whole)
    dropout: float = argument(0.1, check_fraction)

    def _build(self, shape: torch.Size, T: int, n: int) -> CEVAENetwork:
        return CEVAENetwork(shape[0] - 1, self.width, self.latent, self.dropout, self.beta)

    def _default_recipe(self, n: int) -> Recipe:
        return Recipe(epochs=1000, patience=50).over(effect_recipe(self.dropout, n))


@estimator
class DKLITE(Rival, UncertainEffectNetwork):
    """Deep kernel learning for individualised treatment effects, as its authors' code has it.

    A deterministic autoencoder is trained on all people at once; the two arms are Bayesian linear
    regressions on its code, and independent: Var[f1 − f0] = Var[f1] + Var[f0]. The epoch is the
    one whose regressions, fitted to the training people, predict the held-out outcomes best (the
    authors watch the training loss alone); then they learn from the held-out people as well. By
    default it takes at most 1,000 steps of Adam at 1e-3, with a patience of 100.

    Parameters
    ----------
    width
        Of the hidden layers and of the code.
    reg_var, reg_rec
        Weights of the counterfactual variance and of the reconstruction in the loss.
    epochs, batch_size, lr, recipe, validation_fraction, random_state, device, verbose
        As in `due.estimators.Trained`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=200)
    >>> model = DKLITE(epochs=200, random_state=0).fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.5)
    True
    """

    width: int = argument(50, check_whole)
    reg_var: float = argument(1.0, check_not_negative)
    reg_rec: float = argument(1.0, check_not_negative)

    def _build(self, shape: torch.Size, T: int, n: int) -> DKLITENetwork:
        return DKLITENetwork(shape[0] - 1, self.width, self.reg_var, self.reg_rec)

    def _default_recipe(self, n: int) -> Recipe:
        return Recipe(lr=1e-3, batch_size="all", epochs=1000, patience=100, schedule="constant")


def effect_recipe(dropout: float, n: int) -> Recipe:
    """What TARNet and CEVAE share."""
    return Recipe(
        lr=1e-3, batch_size=100, weight_decay=0.5 * (1 - dropout) / n, schedule="constant"
    )
