from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rollmill.core.config.layers import LARGEST, MOST_PROBLEMS
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import differences, dump_yaml, to_dict
from rollmill.core.config.schema import KeyInfo, describe, require_least, require_positive, settings
from rollmill.core.errors import ConfigError


@settings(shorthand="id")
class Env:
    id: str = "cartpole"
    """Name of the environment."""
    frame_skip: int = 4  # simulator frames per step
    size: tuple[int, int] = (128, 72)
    args: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=lambda: {"kill": 1.0})


@settings
class Learning:
    algorithm: Literal["appo", "sac"] = "appo"
    gamma: float = 0.99
    lr: float | Literal["auto"] = 1e-3
    batch: int = 2048
    minibatch: int = 512
    hidden: tuple[int, ...] = (64, 64)
    target_kl: float | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.batch % self.minibatch:
            raise ValueError(f"batch {self.batch} is not a multiple\nof minibatch {self.minibatch}")


@settings
class Record:
    folder: Path
    """Where the episodes
    go."""
    keep: int | None = 10


@settings
class Train:
    env: Env = field(default_factory=Env)
    eval_env: Env = field(default_factory=lambda: Env(frame_skip=1, args={"render": True}))
    learning: Learning
    record: Record | None = None
    name: str = "run"
    frames: int = 1_000_000

    def __post_init__(self) -> None:
        if self.name == "forbidden":
            raise ValueError("this name is taken")


def load(*overrides: str, cls: type[Any] = Train) -> Any:
    return load_config(cls, [], overrides)


def problems(*overrides: str, cls: type[Any] = Train, files: list[Path] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(cls, files or [], overrides)
    return str(caught.value).splitlines()


def problem(*overrides: str, cls: type[Any] = Train) -> str:
    (line,) = problems(*overrides, cls=cls)
    return line


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# --- the decorator


def test_settings_are_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Env().id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Env("doom")  # type: ignore[call-arg]


def test_the_shorthand_must_be_a_field() -> None:
    with pytest.raises(TypeError, match="shorthand 'name' is not one of its fields"):

        @settings(shorthand="name")
        class Wrong:
            id: str = ""


def test_a_key_holds_one_settings_class() -> None:
    with pytest.raises(TypeError, match="one settings class, not several"):
        load(cls=TwoBlocks)


@settings
class TwoBlocks:
    either: Env | Learning | None = None


def test_importing_settings_is_light() -> None:
    code = "import sys, rollmill.core.config.load; print({'pydantic', 'yaml', 'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_pydantic_itself_forbids_unknown_keys() -> None:
    from pydantic import TypeAdapter, ValidationError

    with pytest.raises(ValidationError, match="Unexpected keyword argument"):
        TypeAdapter(Env).validate_python({"idd": "x"})


# --- layers


def test_defaults() -> None:
    config = load()
    assert config == Train(learning=Learning())
    assert config.eval_env.frame_skip == 1


def test_files_stack_and_overrides_win(write: Any) -> None:
    a = write("a.yaml", "env: {id: doom_basic, frame_skip: 2}\nlearning: {gamma: 0.9, lr: 1e-4}\nframes: 5\n")
    b = write("b.yaml", "learning:\n  gamma: 0.95\nenv:\n  frame_skip: 8\n")
    empty = write("empty.yaml", "# nothing\n")
    config = load_config(Train, [a, empty, b], ["learning.lr=3e-4", "learning.lr=2.5e-4"])
    assert config.env == Env(id="doom_basic", frame_skip=8)
    assert config.learning == Learning(gamma=0.95, lr=2.5e-4)
    assert config.frames == 5


def test_free_mappings_are_merged_by_key(write: Any) -> None:
    a = write("a.yaml", "env:\n  args: {map: e1m1, reward: {kill: 1, hit: 2}}\n")
    config = load_config(Train, [a], ["env.args.reward.kill=5", "env.args.seed=1e3", "env.args={}"])
    assert config.env.args == {"map": "e1m1", "reward": {"kill": 5, "hit": 2}, "seed": 1000.0}


def test_a_free_mapping_replaces_its_default() -> None:
    assert load().env.weights == {"kill": 1.0}
    assert load("env.weights.hit=2").env.weights == {"hit": 2.0}
    assert load("env.weights={}").env.weights == {}


def test_a_block_keeps_the_defaults_its_owner_gave_it() -> None:
    assert load("eval_env.id=doom").eval_env == Env(id="doom", frame_skip=1, args={"render": True})


def test_shorthand(write: Any) -> None:
    a = write("a.yaml", "env:\n  frame_skip: 2\n")
    b = write("b.yaml", "env: doom_basic\n")
    assert load_config(Train, [a, b], []).env == Env(id="doom_basic", frame_skip=2)
    assert load_config(Train, [b, a], []).env == Env(id="doom_basic", frame_skip=2)
    assert load_config(Train, [a, b], ["env=doom_battle"]).env == Env(id="doom_battle", frame_skip=2)


def test_shorthand_with_a_wrong_value() -> None:
    assert problem("env=3").startswith("command line 'env=3': env.id: expected str, got 3")
    assert "env.id: expected str, got ['a']" in problem("env=[a]")
    assert "expected a block with the keys id, frame_skip" in problem("env=null")


def test_optional_blocks() -> None:
    assert load().record is None
    assert load("record.folder=data").record == Record(folder=Path("data"))
    assert load("record.folder=data", "record=null").record is None
    assert load("record.folder=a", "record.keep=1", "record=null", "record.folder=b").record.keep == 10
    assert problem("record.keep=3") == (
        "record.folder: required, but no file and no override sets it; add record.folder=VALUE"
    )


@settings
class MustChoose:
    record: Record | None


def test_an_optional_block_without_default_must_be_set() -> None:
    assert "record: required" in problem(cls=MustChoose)
    assert load("record=null", cls=MustChoose).record is None


@settings
class Owner:
    inner: MustChoose = field(default_factory=lambda: MustChoose(record=Record(folder=Path("x"))))
    both: Record | None = field(default_factory=lambda: Record(folder=Path("y"), keep=3))


def test_defaults_of_an_owner_reach_deep() -> None:
    assert load(cls=Owner) == Owner()
    assert load("inner.record.keep=1", cls=Owner).inner.record == Record(folder=Path("x"), keep=1)
    assert load("both.folder=z", cls=Owner).both == Record(folder=Path("z"), keep=3)
    assert load("both=null", cls=Owner).both is None


# --- values


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("learning.gamma=1", 1.0),
        ("learning.gamma=1e-3", 0.001),
        ("learning.batch=1.024e3", 1024),
        ("frames=1e6", 1_000_000),
        ("frames=1_000_000", 1_000_000),
        ("learning.hidden=[32, 1e2]", (32, 100)),
        ("learning.hidden=[]", ()),
        ("env.size=[1e1, 2]", (10, 2)),
        ("learning.lr=auto", "auto"),
        ("learning.lr=3", 3.0),
        ("learning.target_kl=null", None),
        ("learning.target_kl=1", 1.0),
        ("learning.normalise=false", False),
        ("env.weights.a=2", {"a": 2.0}),
        ("name=", ""),
        ("name=''", ""),
        ("name='3'", "3"),
        ("name=a=b", "a=b"),
        ("  name = spaced ", "spaced"),
    ],
)
def test_accepted(override: str, value: Any) -> None:
    batch = ("learning.minibatch=1",) if "batch" in override else ()
    config = load(override, *batch)
    for part in override.partition("=")[0].strip().split(".")[:2]:
        config = getattr(config, part)
    assert config == value
    assert type(config) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("frames='3'", "frames: expected int, got '3'; remove the quotes"),
        ("frames=true", "frames: expected int, got true"),
        ("frames=1.5", "frames: expected int, got 1.5"),
        ("frames=.inf", "frames: a finite number is expected, got inf"),
        ("frames=9223372036854775808", "frames: a smaller number is expected, got 9223372036854775808"),
        ("learning.gamma=.nan", "learning.gamma: a finite number is expected, got nan"),
        ("learning.gamma=-.inf", "learning.gamma: a finite number is expected, got -inf"),
        ("learning.gamma=1e999", "learning.gamma: a finite number is expected, got inf"),
        (
            "learning.hidden=[1, 1e30]",
            "learning.hidden: a smaller number is expected, got 1000000000000000019884624838656",
        ),
        ("learning.gamma=1e300", "learning.gamma: a smaller number is expected, got 1e+300"),
        ("learning.target_kl=.nan", "learning.target_kl: a finite number is expected, got nan"),
        ("env.weights={a: .nan}", "env.weights: a finite number is expected, got nan"),
        ("name=.inf", "name: expected str, got inf"),
        ('name="a\\0b"', "name: a null character, got 'a\\x00b'"),
        ("frames=null", "frames: expected int, got null; null is for optional keys only"),
        ("frames=", "frames: expected int, got ''"),
        ("frames.x=1", "frames: expected int, got {'x': 1}"),
        ("learning.gamma=false", "learning.gamma: expected float, got false"),
        ("learning.gamma=high", "learning.gamma: expected float, got 'high'"),
        ("learning.target_kl=x", "learning.target_kl: expected float | null, got 'x'"),
        ("learning.normalise=1", "learning.normalise: expected bool, got 1; write true or false"),
        ("learning.normalise=yes", "learning.normalise: expected bool, got 'yes'; write true or false"),
        ("learning.hidden=64", "learning.hidden: expected list of int, got 64; write a list: [64]"),
        ("learning.hidden=[a, b]", "learning.hidden: expected list of int, got ['a', 'b']"),
        ("env.size=[1]", "env.size: expected list [int, int], got [1]"),
        ("env.size=[1, 2, 3]", "env.size: expected list [int, int], got [1, 2, 3]"),
        ("env.args=3", "env.args: expected mapping, got 3"),
        ("env.weights.a=x", "env.weights.a: expected float, got 'x'"),
        ("name=3", 'name: expected str, got 3; put quotes around it: "3" (on the command line \'"3"\')'),
        ("record.folder=3", "record.folder: expected path, got 3; put quotes around it"),
        (
            "learning.algorithm=apo",
            "learning.algorithm: expected 'appo' | 'sac', got 'apo'; did you mean 'appo'?",
        ),
        ("learning.algorithm=xyz", "learning.algorithm: expected 'appo' | 'sac', got 'xyz'"),
        ("learning.lr=aut", "learning.lr: expected float | 'auto', got 'aut'; did you mean 'auto'?"),
        ("learning=3", "learning: expected a block with the keys algorithm, gamma,"),
        ("learning=null", "learning: expected a block with the keys algorithm, gamma,"),
    ],
)
def test_refused(override: str, message: str) -> None:
    assert problem(override).startswith(f"command line '{override}': {message}")


def test_odd_numbers_are_refused_beside_other_problems_and_only_where_they_count() -> None:
    found = problems("learning.gamma=.nan", "frames=1e300", "learning.normalise=1", "nonsense=1")
    assert [line.partition("': ")[2].partition(":")[0] for line in found] == [
        "unknown key 'nonsense'; known here",
        "learning.gamma",
        "frames",
        "learning.normalise",
    ]
    assert load("learning.gamma=.nan", "learning.gamma=0.5").learning.gamma == 0.5, "what is replaced does not count"
    assert load("env.args={high: .inf, seed: 1e300}").env.args == {"high": math.inf, "seed": 1e300}
    base = to_dict(load()) | {"frames": 2**64}
    with pytest.raises(ConfigError, match="the saved config: frames: a smaller number is expected"):
        load_config(Train, [], [], base=base)


def test_many_unknown_keys_are_told_in_part() -> None:
    found = problems(*(f"k{i}=1" for i in range(MOST_PROBLEMS + 9)))
    assert len(found) == MOST_PROBLEMS + 1
    assert "there are more unknown keys" in found[-1]


def test_keys_have_a_largest_depth() -> None:
    assert "a key of 5002 parts; 64 are the most" in problem(f"env.args.{'.'.join('a' * 5000)}=1")
    assert len(problem(f"{'x' * 10_000}=1")) < 2000


@settings
class Limits:
    workers: Annotated[int, Ge(1)] = 1
    stages: tuple[Record, ...] = ()


def test_limits_and_lists_of_settings_are_pydantics_work() -> None:
    assert load("workers=1e1", cls=Limits).workers == 10
    assert problem("workers=0", cls=Limits) == (
        "command line 'workers=0': workers: Input should be greater than or equal to 1, got 0"
    )
    assert load("stages=[{folder: a}]", cls=Limits).stages == (Record(folder=Path("a")),)
    assert "stages.0.foldr" in problem("stages=[{folder: a, foldr: b}]", cls=Limits)


# --- unknown keys


@pytest.mark.parametrize(
    ("override", "key", "hint"),
    [
        ("gama=0.9", "gama", "did you mean 'learning.gamma'?"),
        ("gamma=0.9", "gamma", "did you mean 'learning.gamma'?"),
        ("learning.gama=0.9", "learning.gama", "did you mean 'learning.gamma'?"),
        ("lurning.gamma=0.9", "lurning.gamma", "did you mean 'learning.gamma'?"),
        ("lurning.gama=0.9", "lurning.gama", "did you mean 'learning.gamma'?"),
        ("model.gamma=0.9", "model.gamma", "did you mean 'learning.gamma'?"),
        ("frame_skip=1", "frame_skip", "did you mean 'env.frame_skip' or 'eval_env.frame_skip'?"),
        (
            "learning.frame_skip=1",
            "learning.frame_skip",
            "did you mean 'env.frame_skip' or 'eval_env.frame_skip'?",
        ),
        ("modl.gama=0.9", "modl.gama", "did you mean 'learning.gamma'?"),
        ("frame=1", "frame", "did you mean 'frames'?"),
        ("--frames=1", "--frames", "did you mean 'frames'?"),
        ("record.gama=1", "record.gama", "did you mean 'learning.gamma'?"),
        ("record.hint=1", "record.hint", "known here: folder, keep"),
        ("learning.hidn=[1]", "learning.hidn", "did you mean 'learning.hidden'?"),
        ("record.fold=x", "record.fold", "did you mean 'record.folder'?"),
        ("qqq=1", "qqq", "known here: env, eval_env, learning, record, name, frames"),
    ],
)
def test_unknown_keys(override: str, key: str, hint: str) -> None:
    lines = problems(override, "record.folder=x")
    assert lines == [f"command line '{override}': unknown key '{key}'; {hint}"]


def test_dotted_names_in_a_file_are_explained(write: Any) -> None:
    path = write("a.yaml", "learning.gamma: 0.9\n")
    assert problems(files=[path]) == [
        f"{path}, line 1: unknown key 'learning.gamma'; in a file, write 'gamma:' below 'learning:'"
    ]


# --- sources and the list of problems


def test_every_problem_is_reported_with_its_source(write: Any) -> None:
    a = write("a.yaml", "learning:\n  gama: 1\n  gamma: high\nenv:\n  weights:\n    x: bad\nframes: many\n")
    b = write("b.yaml", "env:\n  weights:\n    y: bad\nframes: 3\n")
    assert problems("name=3", "zzz=1", files=[a, b]) == [
        f"{a}, line 2: unknown key 'learning.gama'; did you mean 'learning.gamma'?",
        "command line 'zzz=1': unknown key 'zzz'; known here: env, eval_env, learning, record, name, frames",
        f"{a}, line 6: env.weights.x: expected float, got 'bad'",
        f"{b}, line 3: env.weights.y: expected float, got 'bad'",
        f"{a}, line 3: learning.gamma: expected float, got 'high'",
        "command line 'name=3': name: expected str, got 3; put quotes around it: \"3\" (on the command line '\"3\"')",
    ]


def test_unreadable_layers_are_all_named(write: Any, tmp_path: Path) -> None:
    double = write("double.yaml", "frames: 1\nname: a\nframes: 2\n")
    typo = write("typo.yaml", "frame: 1\n")
    found = problems("frames", "name=[a", files=[double, tmp_path / "tipo.yaml", typo])
    assert found == [
        f"{double}: key 'frames' is set twice, in line 1 and in line 3; keep one of them",
        f"{tmp_path}/tipo.yaml: no such file; did you mean '{typo}'?",
        "command line 'frames': an override is written key.sub=value; did you mean 'frames=VALUE'?",
        "command line 'name=[a', line 1, column 3: not valid YAML: "
        "while parsing a flow sequence expected ',' or ']', but got '<stream end>'",
        f"{typo}, line 1: unknown key 'frame'; did you mean 'frames'?",
    ]


@pytest.mark.parametrize("override", ["=3", ".a=3", "a..b=3", " =3"])
def test_an_override_needs_a_key(override: str) -> None:
    assert "the part before '=' must be a key" in problem(override)


@pytest.mark.parametrize("override", ["name=a\nb", "name=\x1b[2J", "na\rme=a"])
def test_an_override_is_one_printable_line(override: str) -> None:
    """YAML would fold the line break into a space: the name would be another one than was given."""
    assert "only YAML's double quotes, with escapes, can hold it" in problem(override)


def test_contradictions_are_named_by_block(write: Any) -> None:
    a = write("a.yaml", "learning:\n  batch: 100\n")
    assert problems("learning.minibatch=33", files=[a]) == [
        "learning: batch 100 is not a multiple of minibatch 33 "
        f"(values from {a}, line 2; command line 'learning.minibatch=33')"
    ]
    assert problem("name=forbidden") == (
        "configuration: this name is taken (values from command line 'name=forbidden')"
    )


def test_a_contradiction_does_not_list_sources_without_end() -> None:
    many = [f"learning.{key}" for key in ("gamma=1", "lr=1", "normalise=true", "batch=3", "minibatch=2")]
    assert problem(*many).endswith("command line 'learning.batch=3'; and 1 more)")


@settings
class Contradictory:
    keep: int = 1

    def __post_init__(self) -> None:
        raise ValueError("never right")


def test_defaults_can_be_at_fault() -> None:
    assert problem(cls=Contradictory) == "configuration: never right (values from the defaults)"


@settings
class Asserting:
    keep: int = 1

    def __post_init__(self) -> None:
        assert self.keep > 1, "keep must be above 1"


def test_an_assertion_is_a_contradiction_too() -> None:
    assert problem("keep=0", cls=Asserting).startswith("configuration: keep must be above 1")


@settings
class Bounded:
    steps: int = 1
    seconds: float = 0.0
    share: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        require_least(self, 1, "steps")
        require_least(self, 0, "seconds")
        require_least(self, 0, "share", zero="off")
        require_positive(self, "rate")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"seconds": -1.0}, "seconds must not be negative, not -1.0"),
        ({"seconds": math.nan}, "seconds must not be negative, not nan"),
        ({"share": -0.5}, "share must be 0 (off) or positive, not -0.5"),
        ({"rate": 0.0}, "rate must be positive, not 0.0"),
        ({"rate": math.nan}, "rate must be positive, not nan"),
    ],
)
def test_bounds_of_settings(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Bounded(**values)
    assert str(caught.value) == text


@settings
class WrongDefault:
    env: Env = field(default_factory=lambda: Env(frame_skip="four"))  # type: ignore[arg-type]


def test_a_wrong_default_is_found() -> None:
    assert problem(cls=WrongDefault) == "defaults: env.frame_skip: expected int, got 'four'"


# --- out and back


floats = st.floats(allow_nan=False)
finite, integers = st.floats(-LARGEST, LARGEST), st.integers(-(2**63) + 1, 2**63 - 1)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
envs = st.builds(
    Env,
    id=names,
    frame_skip=integers,
    size=st.tuples(integers, integers),
    args=st.dictionaries(st.text(), plain, max_size=3),
    weights=st.dictionaries(st.text(), finite, max_size=3),
)
learnings = st.builds(
    Learning,
    algorithm=st.sampled_from(["appo", "sac"]),
    gamma=finite,
    lr=finite | st.just("auto"),
    batch=st.just(12),
    minibatch=st.sampled_from([1, 2, 3]),
    hidden=st.lists(integers, max_size=4).map(tuple),
    target_kl=st.none() | finite,
    normalise=st.booleans(),
)
records = st.builds(Record, folder=names.filter(bool).map(Path), keep=st.none() | integers)
trains = st.builds(
    Train,
    env=envs,
    eval_env=envs,
    learning=learnings,
    record=st.none() | records,
    name=names,
    frames=integers,
)


@hypothesis_settings(deadline=None)
@given(trains)
def test_round_trip_is_exact(tmp_path_factory: pytest.TempPathFactory, config: Train) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    back = load_config(Train, [path], [])
    assert back == config
    assert repr(back) == repr(config)  # the types, too: 1, 1.0 and True are equal to Python
    assert differences(config, back) == {}


def test_dump_is_in_declared_order_and_plain() -> None:
    text = dump_yaml(Train(learning=Learning(lr=1e-05), record=Record(folder=Path("data"))))
    assert text.splitlines() == [
        "env:",
        "  id: cartpole",
        "  frame_skip: 4",
        "  size: [128, 72]",
        "  args: {}",
        "  weights:",
        "    kill: 1.0",
        "eval_env:",
        "  id: cartpole",
        "  frame_skip: 1",
        "  size: [128, 72]",
        "  args:",
        "    render: true",
        "  weights:",
        "    kill: 1.0",
        "learning:",
        "  algorithm: appo",
        "  gamma: 0.99",
        "  lr: 1.0e-05",
        "  batch: 2048",
        "  minibatch: 512",
        "  hidden: [64, 64]",
        "  target_kl: null",
        "  normalise: true",
        "record:",
        "  folder: data",
        "  keep: 10",
        "name: run",
        "frames: 1000000",
    ]


def test_to_dict_refuses_what_yaml_cannot_hold() -> None:
    with pytest.raises(TypeError, match="plain values only, not object"):
        to_dict(Env(args={"x": object()}))
    with pytest.raises(TypeError, match="expected settings"):
        to_dict(Env)


def test_to_dict_makes_numpy_scalars_plain() -> None:
    import numpy as np

    args = to_dict(Env(args={"x": np.float64(0.5), "y": np.str_("a")}))["args"]
    assert [type(value) for value in args.values()] == [float, str]


def test_differences() -> None:
    a = Train(learning=Learning(), env=Env(args={"x": 1, "same": math.nan, "flag": 1, "list": [1, math.nan]}))
    b = dataclasses.replace(
        a,
        env=Env(args={"y": None, "same": math.nan, "flag": True, "list": [1, math.nan]}),
        learning=Learning(gamma=0.9, hidden=(64, 32), lr=0.001),
        record=Record(folder=Path("data")),
    )
    assert differences(a, b) == {
        "env.args.x": (1, None),
        "env.args.flag": (1, True),
        "env.args.y": (None, None),
        "learning.gamma": (0.99, 0.9),
        "learning.hidden": ([64, 64], [64, 32]),
        "record": (None, {"folder": "data", "keep": 10}),
    }
    assert differences(to_dict(a), b) == differences(a, to_dict(b)) == differences(a, b)
    assert differences({"gamma": 1}, {"gamma": 1.0}) == {}


# --- help


def test_describe() -> None:
    infos = {info.key: info for info in describe(Train)}
    assert infos["env.id"] == KeyInfo("env.id", "str", "cartpole", False, "Name of the environment.")
    assert infos["env.frame_skip"].doc == "simulator frames per step"
    assert infos["eval_env.frame_skip"].default == 1
    assert infos["learning.algorithm"].type == "'appo' | 'sac'"
    assert infos["learning.hidden"] == KeyInfo("learning.hidden", "list of int", [64, 64], False, "")
    assert infos["record"] == KeyInfo("record", "block | null", None, False, "")
    assert infos["record.folder"] == KeyInfo("record.folder", "path", None, True, "Where the episodes go.")
    assert [key for key in infos if "." not in key] == ["record", "name", "frames"]


def test_describe_uses_the_defaults_of_the_owner() -> None:
    infos = {info.key: info for info in describe(Owner)}
    assert infos["both"].default == {"folder": "y", "keep": 3}
    assert infos["both.keep"].default == 3
    assert infos["inner.record.folder"] == KeyInfo("inner.record.folder", "path", "x", False, "Where the episodes go.")


@settings
class OnByDefault:
    learning: Learning | None = field(default_factory=Learning)


def test_an_optional_block_that_is_on_by_default() -> None:
    assert load(cls=OnByDefault) == OnByDefault()
    assert load("learning=null", cls=OnByDefault).learning is None
    first, *rest = describe(OnByDefault)
    assert first == KeyInfo("learning", "block | null", {}, False, "")
    assert all(info.key.startswith("learning.") for info in rest)
