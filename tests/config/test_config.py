"""`Config`: constructing, checking, changing, comparing, saving and loading."""

import dataclasses
import enum
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from stoker.config import Config
from stoker.errors import BadFile, ConfigError, MissingExtra, MissingFile


class Pool(enum.Enum):
    MAX = 1
    MEAN = 2


class Adam(Config):
    betas: tuple[float, float] = (0.9, 0.999)
    foreach: bool | None = None


class SGD(Config):
    momentum: float = 0.0


class ModelConfig(Config):
    num_classes: int
    hidden_size: int
    dropout: float = 0.5

    def init(self) -> str:
        return f"a model of {self.hidden_size}"


class TrainingConfig(Config):
    """A whole training."""

    model: ModelConfig
    optimizer: Adam | SGD
    epochs: int = 3
    pool: Pool = Pool.MAX
    layers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    seen: ClassVar[list[str]] = []


@pytest.fixture
def config() -> TrainingConfig:
    return TrainingConfig(ModelConfig(num_classes=10, hidden_size=128, dropout=0.1), Adam())


def test_positional_and_named_construction_with_defaults_and_methods(config):
    assert config == TrainingConfig(model=ModelConfig(10, 128, 0.1), optimizer=Adam(), epochs=3)
    assert (config.epochs, config.pool, config.layers, config.model.init()) == (3, Pool.MAX, [1, 2], "a model of 128")
    assert [field.name for field in dataclasses.fields(TrainingConfig)] == [
        *("model", "optimizer", "epochs", "pool", "layers")
    ]


def test_a_config_is_frozen_hashable_picklable_and_distinguished_by_class():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Adam().foreach = True  # pyright: ignore[reportAttributeAccessIssue]
    assert len({Adam(), Adam(), Adam(foreach=True)}) == 2
    assert pickle.loads(pickle.dumps(Adam(foreach=True))) == Adam(foreach=True)

    class Other(Config):
        momentum: float = 0.0

    assert SGD() != Other() and repr(SGD()) == "SGD(momentum=0.0)"


def test_tools_see_a_frozen_dataclass_with_the_signature_of_its_fields():
    class Base(Config):
        size: int
        names: list[str] = dataclasses.field(default_factory=list)
        count: int = dataclasses.field(default=3, init=False)

    class Child(Base):
        rate: float = dataclasses.field(kw_only=True)

        def __call__(self, x):
            return x

    assert str(inspect.signature(Child)) == "(size: int, names: list[str] = [], *, rate: float)"
    child = Child(2, rate=1)
    assert list(inspect.signature(child).parameters) == ["x"]
    assert (child.names, child.count, child.rate) == ([], 3, 1.0)
    assert dataclasses.replace(child, size=4) == Child(4, rate=1.0)
    assert Base.__dataclass_params__.frozen and Child.__dataclass_params__.frozen
    with pytest.raises(dataclasses.FrozenInstanceError):
        del child.size


def test_a_default_is_checked_and_converted_too():
    class Loose(Config):
        rate: float = 1
        name: str = 5  # pyright: ignore[reportAssignmentType]

    assert type(Loose(name="a").rate) is float
    with pytest.raises(ConfigError, match="name: expected str, got 5"):
        Loose()


def test_the_constructor_reports_all_errors_at_once():
    with pytest.raises(ConfigError) as caught:
        ModelConfig(num_classes="10", hiden_size=3)  # pyright: ignore
    assert str(caught.value).splitlines() == [
        "3 errors in ModelConfig",
        "  hiden_size: unknown field; did you mean 'hidden_size'?",
        "  hidden_size: missing, expected int",
        '  num_classes: expected int, got "10"',
    ]
    with pytest.raises(ConfigError, match="ModelConfig: takes at most 3 positional arguments, got 4"):
        ModelConfig(1, 2, 0.5, 4)  # pyright: ignore
    with pytest.raises(ConfigError, match="num_classes: given both by position and by name"):
        ModelConfig(1, 2, num_classes=1)  # pyright: ignore


def test_containers_are_copied(config):
    mine = [3]
    other = config.replace(layers=mine)
    mine.append(4)
    assert other.layers == [3]
    config.layers.append(5)
    assert TrainingConfig(config.model, config.optimizer).layers == [1, 2]


def test_a_list_that_was_changed_to_a_wrong_type_is_an_error_when_saved(config):
    config.layers.append("x")
    with pytest.raises(ConfigError, match=r'layers\[2\]: expected int, got "x"'):
        config.to_dict()


def test_post_init_runs_after_the_check_and_its_error_has_a_path_in_a_file(tmp_path):
    class Positive(Config):
        size: float

        def __post_init__(self) -> None:
            assert type(self.size) is float
            if self.size <= 0:
                raise ValueError(f"size must be positive, got {self.size}")

    class Outer(Config):
        inner: Positive

    assert Positive(3).size == 3.0
    with pytest.raises(ValueError, match=r"^size must be positive, got -1.0$"):
        Positive(-1)
    with pytest.raises(ConfigError, match="expected float"):  # the check came first
        Positive("3")  # pyright: ignore
    with pytest.raises(ConfigError, match=r"^inner: size must be positive, got -1.0$"):
        Outer.from_dict({"inner": {"size": -1}})


def test_inheritance_adds_fields_and_overrides_defaults(tmp_path):
    class Wide(ModelConfig):
        dropout: float = 0.0
        width: int = 4

    wide = Wide(10, 20)
    assert (wide.dropout, wide.width, wide.init()) == (0.0, 4, "a model of 20")
    assert Wide.load(wide.save(tmp_path / "wide.json")) == wide
    with pytest.raises(ConfigError, match="model: expected ModelConfig, got its subclass Wide.*annotate it with Wide"):
        TrainingConfig(wide, Adam())


def test_a_class_that_cannot_be_a_config_is_an_error_when_it_is_defined():
    with pytest.raises(ConfigError, match="Bad can't be a config: mutable default .*list.* use default_factory"):

        class Bad(Config):
            layers: list[int] = [1]

    with pytest.raises(ConfigError, match="Bad2 can't be a config: non-default argument 'b' follows default argument"):

        class Bad2(Config):
            a: int = 1
            b: int  # pyright: ignore

    with pytest.raises(ConfigError, match="Bad3 defines __init__.*__post_init__"):

        class Bad3(Config):
            def __init__(self) -> None: ...

    with pytest.raises(ConfigError, match=r"Bad4\.save: a config has a method of this name"):

        class Bad4(Config):
            save: bool = True  # pyright: ignore


def test_replace_changes_nested_configs_and_names_the_path_of_an_error(config):
    changed = config.replace(epochs=9, **{"model.dropout": 0, "optimizer.betas": [0.5, 0.6]})
    assert changed.model == ModelConfig(10, 128, 0.0) and changed.optimizer == Adam(betas=(0.5, 0.6))
    assert changed.epochs == 9 and config.epochs == 3 and changed.layers == config.layers
    assert config.replace(optimizer=SGD(), **{"optimizer.momentum": 0.5}).optimizer == SGD(0.5)
    for change, text in {
        "model.dropuot": r"^model\.dropuot: unknown field; did you mean 'dropout'\?$",
        "model.dropout": r'^model\.dropout: expected float, got "x"$',
        "modle.dropout": r"^modle: unknown field; did you mean 'model'\?$",
        "epochs.x": r"^epochs\.x: epochs is 3, which has no fields$",
    }.items():
        with pytest.raises(ConfigError, match=text):
            config.replace(**{change: "x"})


def test_nested_dataclasses_are_checked_and_copied():
    @dataclasses.dataclass
    class Crop:
        size: float
        sides: list[str] = dataclasses.field(default_factory=list)

    class Data(Config):
        crop: Crop

    mine = Crop(3, ["left"])
    data = Data(mine)
    mine.sides.append("right")
    assert data.crop == Crop(3.0, ["left"]) and type(data.crop.size) is float
    assert Data.from_dict(data.to_dict()) == data
    assert data.replace(**{"crop.size": 4}).crop.size == 4.0
    with pytest.raises(ConfigError, match=r'crop\.size: expected float, got "a"'):
        Data(Crop("a"))  # pyright: ignore


def test_a_function_is_kept_but_cannot_be_saved():
    class Active(Config):
        call: Callable[[float], float]

    assert Active(abs).call(-1.0) == 1.0 and Active(abs) == Active(abs)
    with pytest.raises(ConfigError, match="call: a function can't be saved"):
        Active(abs).to_dict()
    with pytest.raises(ConfigError, match="call: expected Callable, got 3"):
        Active(3)  # pyright: ignore
    with pytest.raises(ConfigError, match='call: expected Callable, got "os.system"'):
        Active.from_dict({"call": "os.system"})


def test_quoted_annotations_are_resolved_in_the_module_or_the_function(tmp_path):
    class Leaf(Config):
        size: "int"

    class Tree(Config):
        leaf: "Leaf"
        more: "list[Tree]" = dataclasses.field(default_factory=list)

    tree = Tree(Leaf(1), [Tree(Leaf(2))])
    assert Tree.from_dict(tree.to_dict()) == tree
    with pytest.raises(ConfigError, match=r'more\[0\]\.leaf\.size: expected int, got "2"'):
        Tree.from_dict({"leaf": {"size": 1}, "more": [{"leaf": {"size": "2"}}]})
    (tmp_path / "later.py").write_text(
        "from __future__ import annotations\n"
        "from stoker.config import Config\n"
        "class Outer(Config):\n    inner: Inner | None = None\n"
        "class Inner(Config):\n    size: int = 1\n"
        "assert Outer.from_dict(Outer(Inner(2)).to_dict()) == Outer(Inner(2))\n"
    )
    subprocess.run([sys.executable, str(tmp_path / "later.py")], check=True)

    class Lost(Config):
        thing: "Nowhere"  # pyright: ignore # noqa: F821

    with pytest.raises(ConfigError, match="Lost: name 'Nowhere' is not defined"):
        Lost(1)


def test_save_and_load(tmp_path, config):
    path = config.save(str(tmp_path / "config.json"))
    assert path == tmp_path / "config.json" and TrainingConfig.load(path) == config
    text = path.read_text()
    assert '  "layers": [1, 2]\n' in text and '    "kind": "Adam",\n' in text
    path.write_text(text.replace("128", '"512"').replace("epochs", "epoch"))
    with pytest.raises(ConfigError) as caught:
        TrainingConfig.load(path)
    assert str(caught.value) == (
        f"{path}: 2 errors in TrainingConfig\n"
        "  epoch: unknown field; did you mean 'epochs'?\n"
        '  model.hidden_size: expected int, got "512"'
    )
    path.write_text("[1]")
    with pytest.raises(ConfigError, match=r"config\.json: expected TrainingConfig, got \[1\]"):
        TrainingConfig.load(path)


def test_a_file_cannot_name_a_class_to_construct():
    with pytest.raises(ConfigError, match='optimizer.kind: expected "Adam" or "SGD", got "subprocess.Popen"'):
        TrainingConfig.from_dict({"model": {}, "optimizer": {"kind": "subprocess.Popen", "args": "true"}})


class Flags(Config):
    model: ModelConfig
    shape: Literal["flat", "deep"] = "flat"
    where: Path = Path("runs")
    quick: bool = False
    optimizer: Adam | SGD = Adam()


def test_from_args_has_a_flag_for_each_field(tmp_path, monkeypatch, capsys):
    words = ["--model.num-classes", "10", "--model.hidden-size", "8", "--model.dropout", "1", "--quick"]
    made = Flags.from_args([*words, "--where", "elsewhere", "optimizer:sgd", "--optimizer.momentum", "0.5"])
    assert made == Flags(ModelConfig(10, 8, 1.0), "flat", Path("elsewhere"), True, SGD(0.5))
    assert type(made.model.dropout) is float
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert Flags.from_args() == Flags(ModelConfig(10, 8, 1.0), quick=True)
    with pytest.raises(SystemExit) as stop:
        Flags.from_args(["--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and "--model.hidden-size INT" in shown and "--config FILE.json" in shown
    with pytest.raises(SystemExit) as stop:
        Flags.from_args(["--model.hiden-size", "3"])
    assert stop.value.code == 2 and "hiden-size" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", [["--config", "{}"], ["--config={}"]])
def test_from_args_starts_from_a_saved_config(tmp_path, spelling):
    path = Flags(ModelConfig(10, 8), shape="deep").save(tmp_path / "config.json")
    words = [word.format(path) for word in spelling]
    assert Flags.from_args([*words, "--model.dropout", "0.25"]) == Flags(ModelConfig(10, 8, 0.25), shape="deep")
    with pytest.raises(ConfigError, match="--config: expected a file after it"):
        Flags.from_args(["--config"])


def test_a_field_called_config_keeps_its_flag():
    class Named(Config):
        config: str = "a"

    assert Named.from_args(["--config", "b"]) == Named("b")


def test_without_tyro_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(MissingExtra, match=r'pip install "stoker\[cli\]"'):
        Flags.from_args([])


def test_a_missing_file_is_an_error_with_a_suggestion(tmp_path):
    Adam().save(tmp_path / "training.json")
    with pytest.raises(MissingFile, match=r"there is no file '.*trainig.json'; did you mean 'training.json'\?"):
        Adam.load(tmp_path / "trainig.json")
    with pytest.raises(BadFile, match="is a directory; expected the path of a file with a config"):
        Adam.load(tmp_path)
