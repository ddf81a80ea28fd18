"""sklearn: `Classifier` and `Regressor`, which train a module with stoker and are estimators of scikit-learn.

>>> import numpy as np
>>> from stoker.sklearn import Regressor
>>> x = np.linspace(-1, 1, 64)[:, None]
>>> Regressor(epochs=40, lr=1e-2, random_state=0).fit(x, 3 * x[:, 0]).score(x, 3 * x[:, 0]) > 0.9
True

They work wherever scikit-learn takes an estimator: pipelines, searches, cross-validation, `clone`, joblib. Importing
this module imports scikit-learn.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from stoker.callbacks import Callback
from stoker.errors import InvalidArgument, WrongType, explain_missing
from stoker.learner import Learner

with explain_missing('stoker.sklearn needs scikit-learn: pip install "stoker[sklearn]"'):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

__all__ = ["Classifier", "Regressor"]


class _Estimator(BaseEstimator):
    """What both estimators share: the parameters, training and predicting."""

    def __init__(
        self,
        model: nn.Module | Callable[..., nn.Module] | None = None,
        *,
        hparams: Mapping[str, Any] | None = None,
        loss: Any = None,
        optimizer: Any = None,
        lr: Any = 1e-3,
        epochs: int = 20,
        batch_size: int = 32,
        valid: float | None = None,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
        device: torch.device | str | None = None,
        learner_options: Mapping[str, Any] | None = None,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.hparams = hparams
        self.loss = loss
        self.optimizer = optimizer
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.valid = valid
        self.callbacks = callbacks
        self.random_state = random_state
        self.device = device
        self.learner_options = learner_options
        self.fit_options = fit_options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters; with `deep`, also each entry of `hparams` as `hparams__name`."""
        params = super().get_params(deep)
        if deep and isinstance(self.hparams, Mapping):
            params |= {f"hparams__{name}": value for name, value in self.hparams.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `hparams__name` sets one entry of `hparams`, also one that is not there yet."""
        prefix = "hparams__"
        super().set_params(**{name: value for name, value in params.items() if not name.startswith(prefix)})
        entries = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
        if entries:
            self.hparams = {**(self.hparams or {}), **entries}
        return self

    def _train(self, x: np.ndarray, y: np.ndarray, sample_weight: Any, loss: Any, outputs: int) -> Self:
        seed = int(check_random_state(self.random_state).randint(2**31))
        columns = {"x": torch.tensor(x), "y": torch.tensor(y)}
        options: dict[str, Any] = {"inputs": "x", "target": "y", **(self.learner_options or {})}
        if sample_weight is not None:
            columns["weight"] = torch.tensor(_check_sample_weight(sample_weight, x, dtype=np.float32))
            options["weight"] = "weight"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._build(x.shape[1:], outputs)
        learner = Learner(
            model,
            loss=self.loss if self.loss is not None else loss,
            optimizer=self.optimizer,
            lr=self.lr,
            device=self.device,
            seed=seed,
            **options,
        )
        arguments = {"epochs": self.epochs, "batch_size": self.batch_size, "callbacks": self.callbacks, "show": False}
        fitted = learner.fit(columns, valid=self.valid, **{**arguments, **(self.fit_options or {})})
        self.model_ = fitted.model
        self.history_ = {name: fitted.history[name] for name in fitted.record.columns}
        self.fitted_ = fitted
        return self

    def _build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A new model, so that neither a second fit nor a clone starts from trained weights."""
        hparams = dict(self.hparams or {})
        if isinstance(self.model, nn.Module):
            if hparams:
                raise InvalidArgument("hparams are for a model class or function; this model is an instance")
            return copy.deepcopy(self.model)
        if self.model is not None and not callable(self.model):
            raise WrongType(f"model is a module, or a class or function that returns one; got {self.model!r}")
        build = _perceptron if self.model is None else self.model
        sizes = {"in_features": int(np.prod(shape)), "out_features": outputs}
        takes = inspect.signature(build).parameters
        return build(**{**{name: size for name, size in sizes.items() if name in takes}, **hparams})

    def _predict(self, data: Any) -> Tensor:
        """The model's predictions for all rows, on the CPU."""
        check_is_fitted(self, "model_")
        x = torch.tensor(validate_data(self, data, dtype=np.float32, allow_nd=True, reset=False))
        home = next((each.device for each in self.model_.parameters()), torch.device("cpu"))
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else home))
        self.model_.to(device)
        try:
            with torch.inference_mode():
                return torch.cat([self.model_(rows.to(device)).cpu() for rows in x.split(1024)])
        finally:
            self.model_.to(home)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out `fitted_`, which holds the training data and the run: a pickle has the model and its history."""
        state = cast(dict[str, Any], super().__getstate__())
        return {name: value for name, value in state.items() if name != "fitted_"}


class Classifier(ClassifierMixin, _Estimator):
    """A classifier of scikit-learn whose model is a module that returns one logit per class.

    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> x = np.random.default_rng(0).normal(size=(90, 2))
    >>> y = np.where(x[:, 0] > 0, "right", "left")
    >>> classifier = Classifier(epochs=20, lr=1e-2, random_state=0)
    >>> bool(cross_val_score(classifier, x, y, cv=3).mean() > 0.9)
    True

    - `model`: a class or function that returns a module. It is called with the `hparams`, and with `in_features` and
      `out_features` if it takes arguments of these names. Or a module, of which every fit trains a copy. By default a
      perceptron with one hidden layer (`hparams={"hidden": 64}`).
    - `hparams`: searches set single entries by the name `hparams__hidden`.
    - `loss`, `optimizer`, `lr`, `device`: as in `Learner`; the loss is the cross-entropy by default.
    - `epochs`, `batch_size`, `valid`, `callbacks`: as in `Learner.fit`; `valid` is a fraction of the data.
    - `random_state`: an int makes fits reproducible.
    - `learner_options`, `fit_options`: other arguments of `Learner` and `Learner.fit`, by name.

    A fit sets `model_` (an ordinary module), `history_` (metrics by name), `fitted_` (a `Fitted`, not in pickles),
    `classes_` and `n_features_in_`. Inputs become float32 and may have any number of dimensions.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Classifier":
        """Trains a new model; `y` are labels of any type, and a weight of 2 counts like two samples in the loss."""
        x, y = cast(Any, validate_data(self, X, y, dtype=np.float32, allow_nd=True))
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        return self._train(x, targets.astype(np.int64), sample_weight, nn.CrossEntropyLoss(), len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities of the classes, in the order of `classes_`."""
        return self._predict(X).double().softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable labels."""
        places = self._predict(X).argmax(1).numpy()
        return self.classes_[places]


class Regressor(RegressorMixin, _Estimator):
    """A regressor of scikit-learn whose model is a module that returns one number per target.

    >>> Regressor(nn.Linear, lr=1e-2).set_params(epochs=3)
    Regressor(epochs=3, lr=0.01, model=<class 'torch.nn.modules.linear.Linear'>)

    The parameters are those of `Classifier`; the loss is the mean squared error by default. `y` has one column or
    several. Targets are not scaled: `sklearn.compose.TransformedTargetRegressor` does that.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Regressor":
        """Trains a new model; a sample of weight 2 counts like two in the loss."""
        options: dict[str, Any] = {"dtype": np.float32, "allow_nd": True, "multi_output": True, "y_numeric": True}
        x, y = cast(Any, validate_data(self, X, y, **options))
        self._has_one_target = y.ndim == 1
        targets = np.asarray(y, np.float32).reshape(len(y), -1)
        return self._train(x, targets, sample_weight, nn.MSELoss(), targets.shape[1])

    def predict(self, X: Any) -> np.ndarray:
        """Returns predictions in the shape of the `y` of `fit`."""
        found = self._predict(X).flatten(1).double().numpy()
        return found[:, 0] if self._has_one_target else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _perceptron(in_features: int, out_features: int, hidden: int = 64) -> nn.Module:
    layers = nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, out_features)
    return nn.Sequential(nn.Flatten(), *layers)
