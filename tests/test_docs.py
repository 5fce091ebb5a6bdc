"""Keeps the documentation true: keys, metrics, commands, code, links and named tests are checked against the code."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import fnmatch
import functools
import inspect
import io
import itertools
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from running import ROOT, load_tool

import rollmill
from rollmill.cli.arguments import arguments_of
from rollmill.cli.main import main
from rollmill.cli.tree import VERBS, Verb, find
from rollmill.cli.words import parse
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.config.old_names import OLD_NAMES
from rollmill.core.config.schema import describe
from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.imports import import_object
from rollmill.core.run_kind import STAGES
from rollmill.envs.batch import random_actions
from rollmill.envs.make import NAMED, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.launch.settings import BACKENDS, LaunchSettings
from rollmill.models.encoders import smallest_image
from rollmill.models.settings import ENCODERS
from rollmill.monitor.trackio import TrackioSettings
from rollmill.reports.html.style import STYLE
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig, check
from rollmill.runs.settings.world import WorldConfig
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import train
from rollmill.store.filters import Filter

DOCS = ROOT / "docs"
FAQ = DOCS / "faq.md"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])
KEYS = {info.key: info for info in describe(TrainConfig)}
OFFLINE_KEYS = {info.key for info in describe(OfflineConfig)}
BLOCKS = {key.partition(".")[0] for key in KEYS}
SHELL = ("", "bash", "sh")
"""Languages of blocks with commands."""
FREE = tuple(key + "." for key, info in KEYS.items() if info.type.startswith("mapping"))
"""Beginnings of keys below a free mapping: ``env.args.`` and ``model.custom_args.``."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its code blocks."""
    return "".join(text for language, text in pieces_of(page) if language is None)


def code_blocks(language: str) -> list[tuple[Path, str]]:
    """(page, code) of all blocks in this language; an empty one for plain blocks."""
    return [(page, text) for page in PAGES for found, text in pieces_of(page) if found == language]


def pieces_of(page: Path) -> Iterator[tuple[str | None, str]]:
    """The page cut at its fences: (language of the block, its text), None for the prose between."""
    language: str | None = None
    lines: list[str] = []
    for line in text_of(page).splitlines(keepends=True):
        if line.startswith("```"):
            yield language, "".join(lines)
            language = line.strip("`\n") if language is None else None
            lines = []
        else:
            lines.append(line)
    assert language is None, f"{page}: a code block is not closed"
    yield None, "".join(lines)


def table_rows(page: Path) -> list[list[str]]:
    """Cells of all table rows, heads and rules left out."""
    lines = [line for line in prose_of(page).splitlines() if line.startswith("| ") and line.endswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def is_key(text: str) -> bool:
    block = any(key.startswith(f"{text}.") for key in KEYS)
    return block or text in KEYS or text in BLOCKS or text in OFFLINE_KEYS or text.startswith(FREE)


def is_any_key(text: str) -> bool:
    """A key of trainings, offline learning, world models or launching."""
    others = (info.key for config in (WorldConfig, LaunchSettings) for info in describe(config))
    return is_key(text) or text in others


# -- configuration ------------------------------------------------------------------------------------


def test_the_page_of_all_keys_is_up_to_date() -> None:
    tool = load_tool("config_keys")
    assert text_of(tool.PAGE) == tool.page(), "run: python tools/config_keys.py"


def test_every_key_has_an_explanation() -> None:
    assert [key for key, info in KEYS.items() if not info.doc] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_keys_in_the_text_exist(page: Path) -> None:
    words = re.findall(r"`([a-z]+\.[a-z_.]+)(?:=[^`]*)?`", prose_of(page))
    keys = [word for word in words if word.partition(".")[0] in BLOCKS and not word.endswith((".py", ".md", ".html"))]
    # ``run.parts...`` and ``run.set_variable`` are attributes of a run in progress, not settings.
    keys = [key for key in keys if not key.startswith(("run.parts.", "run.set_variable"))]
    if page.name == "CHANGELOG.md":  # what was released stays as it was written
        keys = [key for key in keys if key.rpartition(".")[2] not in OLD_NAMES]
    assert [key for key in keys if not is_key(key)] == []


FROM_OTHERS = sorted(DOCS.glob("from_*.md"))


@pytest.mark.parametrize("page", FROM_OTHERS, ids=lambda p: p.stem)
def test_what_pages_for_users_of_other_tools_name_exists(page: Path) -> None:
    rows = [cells for cells in table_rows(page) if cells[1] not in ("here", "---")]
    assert len(rows) > 30, "the tables were read"
    words = [word for _, cell, _ in rows for word in re.findall(r"`([^`]+)`", cell)]
    settings = [word for word in words if not word.startswith(("--", "rollmill "))]
    unknown = [word for word in settings if not is_any_key(word.partition("=")[0])]
    unknown += [word for word in words if word.startswith("--") and word not in flags_of_all_verbs()]
    unknown += [word for word in words if word.startswith("rollmill ") and find(word.split()[1:])[2]]
    assert unknown == []
    load_config(TrainConfig, [], [word for word in settings if "=" in word and is_key(word.partition("=")[0])])


@pytest.mark.parametrize("page", FROM_OTHERS, ids=lambda p: p.stem)
def test_rows_for_users_of_other_tools_say_what_is_here_or_why_nothing_is(page: Path) -> None:
    assert [cells for cells in table_rows(page) if not (cells[1] or cells[2])] == []


# -- commands and code --------------------------------------------------------------------------------


def given_by(name: tuple[str, ...], verb: Verb, words: list[str]) -> dict[str, Any]:
    """What a command line says, fields of option dataclasses beside the other parameters."""
    given = parse(verb.load(), words, f"rollmill {' '.join(name)}").arguments
    blocks = [vars(value) for value in given.values() if dataclasses.is_dataclass(value)]
    return dict(itertools.chain(given.items(), *(block.items() for block in blocks)))


@functools.cache
def flags_of_all_verbs() -> frozenset[str]:
    verbs, flags = [*VERBS.values()], {"--help"}
    for verb in verbs:
        verbs.extend(verb.verbs.values())
        if verb.target:
            flags.update(flag for argument in arguments_of(verb.load()) for flag in argument.flags)
    return frozenset(flags)


def commands() -> list[tuple[str, str]]:
    """Every ``rollmill`` command of the pages as (page, words after ``rollmill``)."""
    found = []
    for page, block in itertools.chain.from_iterable(map(code_blocks, SHELL)):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.search(r"(?:^|\s)(?:rollmill|-m rollmill\.cli\.main) (.*)", line.partition("#")[0])
            if command and "KEY=VALUE" not in line and not line.startswith("docker build"):
                found.append((page.name, command.group(1)))
    for page, column in ((FAQ, 1), (ROOT / "README.md", 1)):  # in tables
        cells = "".join(cells[column] for cells in table_rows(page))
        found += [(page.name, words) for words in re.findall(r"`rollmill ([^`]+)`", cells)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_brackets_are_quoted(page: Path) -> None:
    """Some shells (zsh) refuse a word with brackets, and all of them look for files of that name."""
    blocks = [text.replace("\\\n", " ") for language, text in pieces_of(page) if language in SHELL]
    lines = [line for text in blocks for line in text.splitlines()] + re.findall(r"`([^`\n]+)`", prose_of(page))
    programs = re.compile(r"((nohup|env|\w+=\S+) )*(rollmill|python3?|pip|make|ray|docker) ")
    bare = [re.sub(r"'[^']*'|\"[^\"]*\"|\$\{\w+\}|(^|\s)#.*", "", line) for line in lines if programs.match(line)]
    assert [line for line in bare if re.search(r"[\[\]{}]", line)] == []


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())), ids=lambda text: text[:60])
def test_commands_are_what_the_program_takes(page: str, command: str) -> None:
    words = shlex.split(re.sub(r"\$\w+", "0", re.sub(r"[>&|].*", "", command)))
    if not words[0].startswith("-") and words[-1] != "--help":
        check_command(words)


def check_command(words: list[str]) -> None:
    """Refuses words that the program would refuse before it starts anything."""
    name, verb, rest = find(words)
    assert verb.target, f"no verb {rest[0]}"
    given = given_by(name, verb, rest)
    Filter.parse(given.get("filters", ()))
    check_options(name, verb, rest)
    if name in (("eval",), ("watch",)):
        assert given.get("report") or not given.get("videos"), "--videos are shown on the page of --report"
        return  # their words come on top of a run's own
    if verb.settings:
        cls = import_object(f"rollmill.{verb.settings}", "docs")
        config = load_config(cls, given.get("config", ()), given["overrides"])
        if name in (("train",), ("bench",)) and ":" not in config.env.id:
            check(dataclasses.replace(config, trackio=TrackioSettings()))  # it need not be installed
    elif name == ("config",):
        assert given.get("prefix", "learning") in (*BLOCKS, *KEYS, *OFFLINE_KEYS)


POLICY = re.compile(r"[A-Z]+(@\w+)?|.*[/:].*|.*\.(ckpt|bin)|(smoothed-)?random(-controller)?")
"""What may stand for a policy: RUN, a path, policy:NAME, module:callable, a file, random play."""


def check_options(name: tuple[str, ...], verb: Verb, words: list[str]) -> None:
    """What a command refuses before it looks for files: contradictions, and words that are no policy."""
    given = parse(verb.load(), words, f"rollmill {' '.join(name)}").arguments
    if name == ("collect",):
        options = given["options"]
        is_run = options.policy == "RUN" or options.policy.startswith("runs/")
        dataclasses.replace(options, policy=str(ROOT) if is_run else options.policy).check(given["overrides"])
    elif name == ("watch",):
        given["options"].check()
        assert POLICY.fullmatch(str(given["policy"]))
    elif name == ("eval",):
        dataclasses.replace(given["options"], record=given.get("record") is not None).check()
        assert [word for word in given["policies"] if not POLICY.fullmatch(word)] == []
        assert given["options"].report or "report_videos" not in given, "--report-videos without --report"


def test_a_command_that_the_program_would_refuse_is_found() -> None:
    for words in ("RUN --report-videos videos", "RUN --grid 3x3", "RUN --episodes 3 --steps 3", "RUN --report-videos"):
        with pytest.raises((AssertionError, ConfigError)):
            check_options(("eval",), VERBS["eval"], words.split())


def shell_commands(page: Path) -> Iterator[list[str]]:
    """The ``rollmill`` commands of a page in their order, word by word."""
    for language, block in pieces_of(page):
        if language in SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"(?:nohup )?rollmill (.*)", line.partition(" #")[0])
                if found and "KEY=VALUE" not in line:
                    yield shlex.split(re.sub(r"[>&|].*", "", found.group(1)))


def folder_made_by(words: list[str]) -> Path | None:
    """The run folder that a command makes."""
    name, verb, rest = find(words)
    if name not in (("train",), ("offline",)) or "--help" in rest:
        return None
    given = given_by(name, verb, rest)
    files = given.get("config", ())
    if name == ("train",):
        return load_config(TrainConfig, files, given["overrides"]).folder
    return load_config(OfflineConfig, files, [f"store={given['store']}", *given["overrides"]]).folder


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_runs_in_commands_were_made_by_earlier_ones(page: Path) -> None:
    """On the same page, or on the first one: whoever copies the commands must not find folders missing."""
    first = DOCS / "quickstart.md"
    made = {folder_made_by(words) for words in shell_commands(first)} if page != first else set()
    for words in shell_commands(page):
        for word in words[1:]:
            place = Path(*Path(word).parts[:3])
            if word.startswith("runs/default/") and not any(c in word for c in "*[<"):
                assert place in made, f"{page.name}: rollmill {' '.join(words)}"
        made.add(folder_made_by(words))


def in_short(words: list[str], name: str) -> list[str]:
    """A training with a twentieth of its frames, in a folder of its own unless it says which."""
    plain = (re.sub(r"(?<=\d)_(?=\d)", "", word) for word in words)
    short = [re.sub(r"(?<=^stop\.frames=)\d+", lambda found: str(int(found[0]) // 20), word) for word in plain]
    if not any(word.startswith("stop.frames") for word in words):
        short.append("stop.frames=3000")
    is_named = name == "" or "--resume" in words or any(word.startswith("run.name") for word in words)
    return short if is_named else [*short, f"run.name={name}"]


def test_the_quick_start_and_the_questions_about_it_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as a reader would; whoever goes on with a run comes further."""
    monkeypatch.chdir(tmp_path)
    (block,) = [text for _, text in code_blocks("python") if "class Wide" in text and "output_size" in text][:1]
    Path("my_model.py").write_text(block, encoding="utf-8")
    first = [words for words in shell_commands(DOCS / "quickstart.md") if words[0] in ("train", "eval", "runs")]
    first = [words for words in first if "--help" not in words]
    assert len(first) > 5
    for words in first:
        assert main(in_short(words, "") if words[0] == "train" else words) == 0, words
    run = Path("runs/default/CartPole-v1-s0")
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None
    rows = [cells[1] for cells in table_rows(FAQ) if re.search(r"`rollmill train .*cart", cells[1], re.IGNORECASE)]
    found = [shlex.split(words) for row in rows for words in re.findall(r"`rollmill ([^`]+)`", row)]
    assert sum("--resume" in words or "--restore" in words for words in found) == 2
    for number, words in enumerate(found):
        given = [str(newest.path) if word.startswith("RUN/checkpoints/") else word for word in words]
        assert main([*in_short(given, f"faq{number}"), "sampling.workers=1"]) == 0, words
    for folder in (run, Path("runs/default/second")):
        last = Checkpoints(folder / "checkpoints").newest()
        assert last is not None
        assert last.step > newest.step, folder


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 15


def block_ids() -> list[str]:
    return [f"{page.stem}-{i}" for i, (page, _) in enumerate(code_blocks("python"))]


@pytest.mark.parametrize(("page", "block"), code_blocks("python"), ids=block_ids())
def test_python_code_runs(page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "from_the_docs.py"
    file.write_text(block, encoding="utf-8")
    names: dict[str, object] = {"__name__": "from_the_docs"}
    exec(compile(block, str(file), "exec"), names)
    for node in ast.parse(block).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            try_out(names[node.name], f"{file}:{node.name}")


def try_out(found: object, name: str) -> None:
    """Use what a page defines the way a run would."""
    import torch
    from dreaming import line_model
    from torch import nn

    from rollmill.models.actor_critic import build_model
    from rollmill.models.settings import ModelSettings
    from rollmill.worldmodel.controller.nets import build_own
    from rollmill.worldmodel.dynamics.model import Core
    from rollmill.worldmodel.encoder.file import ImageEncoder, build_encoder

    if isinstance(found, type) and issubclass(found, ImageEncoder):
        encoder = build_encoder(name, (8, 8, 3), size=4)
        torch.autograd.backward(encoder.loss(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.Generator())[0])
    elif isinstance(found, type) and issubclass(found, Core):
        line_model(custom=name)
    elif isinstance(found, type) and "features" in inspect.signature(found).parameters:
        build_own(name, {}, features=5, outputs=2, device="cpu")
    elif isinstance(found, type) and issubclass(found, nn.Module):
        spec = EnvSpec("docs", (Field("obs", "float32", (4,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))
        build_model(spec, ModelSettings(custom=name))
    elif getattr(found, "__name__", "") == "make" or hasattr(found, "reset"):
        play(name)


def play(name: str) -> None:
    env = make_env(EnvSettings(id=name))
    obs = {field.name: np.zeros((env.spec.agents, *field.shape), field.dtype) for field in env.spec.observation}
    env.reset(1, obs)
    for _ in range(3):
        env.step(random_actions(env.spec, np.random.default_rng(0), obs, env.spec.agents), obs)
    env.close()


def test_every_built_in_environment_is_described() -> None:
    pages = ("environments", "env_adapters", "doom_matches")
    text = "".join(text_of(DOCS / f"{page}.md") for page in pages)
    assert [name for name in NAMED if f"`{name}`" not in text] == [], f"give it a row in one of {pages}"


def test_every_public_name_has_its_place_in_the_reference() -> None:
    shown = re.findall(r"^::: rollmill\.(\w+)$", text_of(DOCS / "reference.md"), re.MULTILINE)
    assert sorted(shown) == sorted(name for name in rollmill.__all__ if not name.startswith("__"))


def test_the_overview_leads_to_every_page() -> None:
    text = text_of(DOCS / "index.md")
    assert [page.name for page in DOCS.glob("*.md") if f"({page.name}" not in text and page.name != "index.md"] == []


def test_every_page_leads_on() -> None:
    """With its last paragraph; the overview leads everywhere, and the page of all keys is made from the code."""
    ends = {page.name: text_of(page).rstrip().rpartition("\n\n")[2] for page in DOCS.glob("*.md")}
    without = {name for name, end in ends.items() if not re.search(r"\]\(\w+\.md", end)}
    assert without == {"index.md", "config_keys.md"}


def test_every_encoder_is_described() -> None:
    """With its layers, and how small an image may be."""
    text = text_of(DOCS / "models.md")
    for name, layers in ENCODERS.items():
        rows = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
        assert len(rows) == 1, f"`{name}` needs one row in docs/models.md"
        if not isinstance(layers, str):
            (row,) = rows
            for channels, kernel, stride in layers:
                assert f"{channels} {kernel}x{kernel} stride {stride}" in row, name
            assert f"{smallest_image(name)} pixels at least" in row


def test_every_back_end_is_described() -> None:
    (row,) = (cells for cells in table_rows(DOCS / "launch.md") if cells[0] == "`backend`")
    assert [name for name in BACKENDS if f"`{name}`" not in row[2]] == [], "it belongs into docs/launch.md"


def test_every_stage_of_world_models_is_described_in_its_place() -> None:
    rows = [cells[:2] for cells in table_rows(DOCS / "world_models.md") if cells[0] in STAGES]
    places = [[name, f"`{stage.folder}/`" if stage.folder else ""] for name, stage in STAGES.items()]
    assert rows == places, "a stage has a row in the first table of docs/world_models.md"


def test_every_verb_is_mentioned() -> None:
    assert [verb for verb in VERBS if f"`{verb}`" not in text_of(DOCS / "index.md")] == []


def test_every_hook_of_an_observer_is_described() -> None:
    hooks = [name for name in vars(Observer) if not name.startswith("_")]
    rows = " ".join(cells[0] for cells in table_rows(DOCS / "observers.md"))
    assert [hook for hook in hooks if f"`{hook}(" not in rows] == []


# -- metrics ------------------------------------------------------------------------------------------


def test_every_logged_metric_is_explained_and_every_explained_one_is_logged(tmp_path: Path) -> None:
    words = "sampling.mode=serial sampling.workers=1 sampling.envs_per_worker=4 sampling.rollout=16"
    words += " learning.batch_size=64 learning.minibatches=1 learning.epochs=1"
    words += " learning.targets=vtrace replay.capacity=8 pool.every_updates=1"
    words += " stop.batches=4 report.every_frames=64 report.tensorboard=false recording.keep=all"
    logged: set[str] = set()
    solved = "observers.use=[rollmill.runs.train.games:Exploitability]"
    for env, more in (("toy_target", ()), ("toy_pair", ()), ("kuhn_poker", (solved,))):
        config = load_config(TrainConfig, [], [*words.split(), f"env={env}", f"run.dir={tmp_path}", *more])
        train(config, Request(console="off"))
        rows = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
        logged.update(*rows)
    logged = {name for name in logged if not name.startswith("task/large/")}  # small stands for every task
    first_cells = [cells[0] for cells in table_rows(DOCS / "metrics.md")]
    explained = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(explained) == len(set(explained))
    of_clusters = {name for name in explained if name.startswith("cluster/")}  # runs/train/cluster/test_cluster.py
    not_here = of_clusters | {"learn/ranks"}  # runs/train/ranks/test_processes.py
    assert logged - set(explained) == set(), "logged, and not explained in docs/metrics.md"
    assert set(explained) - logged - not_here == set(), "explained in docs/metrics.md, and not logged here"


# -- reliability --------------------------------------------------------------------------------------


def test_every_test_named_for_a_fault_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text_of(DOCS / "reliability.md"))
    assert len(named) > 30, "the tables were read"
    missing = [f"{file}::{name}" for file, name in named if name not in functions_of(ROOT / "tests" / file)]
    assert missing == []


def functions_of(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {node.name for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, ast.FunctionDef)}


def test_every_fault_names_a_test() -> None:
    rows = [cells for cells in table_rows(DOCS / "reliability.md") if cells[-1] not in ("tests", "---")]
    assert [cells[0] for cells in rows if "::" not in cells[-1]] == []


# -- capabilities -------------------------------------------------------------------------------------

CAPABILITIES = [cells for cells in table_rows(DOCS / "capabilities.md") if re.fullmatch(r"[A-Z]\d+", cells[0])]


def test_capabilities_are_named_once_and_without_gaps() -> None:
    names = [cells[0] for cells in CAPABILITIES]
    families = {family: [int(name[1:]) for name in names if name[0] == family] for family in "REHWDA"}
    assert {family: list(range(1, len(numbers) + 1)) for family, numbers in families.items()} == families
    assert len(names) > 130


@pytest.mark.parametrize("cells", CAPABILITIES, ids=lambda cells: cells[0])
def test_a_capability_has_a_page_and_a_test(cells: list[str]) -> None:
    _, _, pages, tests = cells
    links = re.findall(r"\]\(([\w.]+)(?:#([\w-]+))?\)", pages)
    assert links
    assert [link for link in links if link[1] and link[1] not in headings_of(DOCS / link[0])] == []
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tests)
    assert named
    assert [one for one in named if one[1] and one[1] not in functions_of(ROOT / "tests" / one[0])] == []
    assert [file for file, _ in named if not (ROOT / "tests" / file).is_file()] == []


def test_what_is_missing_names_capabilities_that_there_are() -> None:
    missing = text_of(DOCS / "capabilities.md").rpartition("\n## ")[2]
    named = re.findall(r"\b([A-Z]\d+)\b", missing)
    assert named
    assert set(named) <= {cells[0] for cells in CAPABILITIES}


# -- the pages as a whole -----------------------------------------------------------------------------


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_outside_the_pages_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", text_of(ROOT / name))
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_every_question_has_an_answer_on_another_page_two_clicks_from_the_start() -> None:
    rows = [cells for cells in table_rows(FAQ) if cells[0].endswith("?")]
    assert len(rows) >= 20
    for question, _, links in rows:
        targets = re.findall(r"\]\(([\w.]+)(?:#([\w-]+))?\)", links)
        assert targets, question
        for page, heading in targets:
            assert not heading or heading in headings_of(DOCS / page), f"{question} {page}#{heading}"
    for start in (DOCS / "index.md", ROOT / "README.md"):
        assert re.search(r"\]\((docs/)?faq\.md\)", text_of(start)), f"{start.name} does not lead to the questions"


def headings_of(page: Path) -> set[str]:
    """The addresses of a page's headings, as the built pages have them."""
    titles = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def test_images_are_used_and_small() -> None:
    """GitHub shows what is below 10 MB; a clone and a page on the road want much less."""
    images = sorted((DOCS / "images").iterdir())
    text = "".join(map(text_of, PAGES))
    assert {path.name for path in images if f"images/{path.name}" not in text} == set()
    text += text_of(ROOT / "benchmarks" / "RESULTS.md")
    assert {path.name for path in (DOCS / "figures").iterdir() if f"figures/{path.name}" not in text} == set()
    assert all(path.stat().st_size < 1_000_000 for path in images)
    assert sum(path.stat().st_size for path in images) < 4_000_000


def test_pictures_of_pages_have_the_colours_of_the_style_sheet() -> None:
    """Fewer colours make smaller files; the ground, most of each picture, is still that of the page."""
    image = pytest.importorskip("PIL.Image")
    light, dark = dict.fromkeys(re.findall(r"--page: (#\w{6});", STYLE))
    for path in (DOCS / "images").glob("*.png"):
        with image.open(path) as picture:
            found = "#" + bytes(picture.convert("RGB").getpixel((3, 3))).hex()
        assert found == (dark if path.stem.endswith("_dark") else light), path


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for package in ("av", "PIL", "playwright"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(ROOT / "tools")
    return load_tool("pictures")


def test_every_picture_has_a_maker(pictures: ModuleType) -> None:
    for folder, patterns in (
        ("images", [pattern for maker in pictures.MAKERS.values() for pattern in maker.files]),
        ("figures", list(pictures.FIGURES)),
    ):
        names = {path.name for path in (DOCS / folder).iterdir()}
        made = {pattern: set(fnmatch.filter(names, pattern)) for pattern in patterns}
        assert set().union(*made.values()) == names
        assert [pattern for pattern, found in made.items() if not found] == []


def test_the_check_of_an_installation_runs_what_the_program_takes() -> None:
    for words in load_tool("install_check").QUICK_START:
        check_command(list(words))


def test_makers_of_pictures_run_what_the_program_takes(pictures: ModuleType) -> None:
    lines = itertools.chain.from_iterable(pictures.COMMANDS.values())
    demo = re.findall(r"^\t\$\(BIN\)/rollmill (.*)$", text_of(ROOT / "Makefile").replace("\\\n", " "), re.MULTILINE)
    assert len(demo) > 5
    for words in (*map(list, lines), *(shlex.split(re.sub(r"\$\(\w+\)", "", line)) for line in demo)):
        check_command(words)


class Parsed(Exception):
    """The arguments were understood."""


@pytest.mark.parametrize(
    "figure",
    ["curves_cartpole.svg", "curves_doom_basic.svg", "curves_recording.svg", "growth_*.svg", "world_ablations.svg"],
)
def test_benchmarks_take_the_words_that_draw_a_figure(
    pictures: ModuleType, figure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, *words = pictures.FIGURES[figure].split()
    path = ROOT / "benchmarks" / script
    assert "save_plot(" in text_of(path)
    parse_args = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    monkeypatch.syspath_prepend(path.parent)
    with pytest.raises(Parsed):
        runpy.run_path(str(path), run_name="__main__")


def test_figures_name_both_axes() -> None:
    named = {path.name: text_of(path).count('class="title"') for path in (DOCS / "figures").glob("*.svg")}
    assert [name for name, count in named.items() if count != 2] == []


def test_drawings_are_what_the_program_draws(pictures: ModuleType) -> None:
    """The bars hold the figures of the page on performance: newer ones there want them drawn again."""
    for name, draw_it in pictures.DIAGRAMS.items():
        assert text_of(DOCS / "images" / f"{name}.svg") == draw_it(), "run: python tools/pictures.py drawings"
    bars = text_of(DOCS / "images" / "speed.svg")
    (row,) = (cells for cells in table_rows(DOCS / "performance.md") if cells[0] == "basic, frames/s")
    assert all(f">{cell.split()[0]}<" in bars for cell in (row[1], row[3]))


def test_a_picture_of_a_page_has_colours_of_the_page_alone(pictures: ModuleType, tmp_path: Path) -> None:
    """Of a few light points, too, on a page with more greys than a palette holds; of a photograph, every one."""
    light = (165, 190, 230)
    greys = np.indices((100, 100)).sum(0)
    page = np.stack([255 - greys // 3, 255 - greys // 4, 255 - greys // 5], axis=-1).astype(np.uint8)
    page[40:42, 40:42] = light
    kept = as_saved(pictures, tmp_path, page)
    assert (kept[40:42, 40:42] == light).all()
    assert np.abs(kept.astype(int) - page).max() <= pictures.UNSEEN
    assert {*map(tuple, kept.reshape(-1, 3))} <= {*map(tuple, page.reshape(-1, 3))}
    photograph = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    assert (as_saved(pictures, tmp_path, photograph) == photograph).all()


def as_saved(pictures: ModuleType, folder: Path, page: np.ndarray) -> np.ndarray:
    shot = io.BytesIO()
    pictures.Image.fromarray(page).save(shot, "PNG")
    pictures.save_page(folder / "page.png", shot.getvalue())
    with pictures.Image.open(folder / "page.png") as picture:
        return np.asarray(picture.convert("RGB"))


def test_the_first_picture_moves_for_some_seconds_and_shows_something(pictures: ModuleType) -> None:
    with pictures.Image.open(DOCS / "images" / "agent.webp") as picture:
        seconds = 0.0
        for k in range(picture.n_frames):
            picture.seek(k)
            assert np.asarray(picture.convert("L")).mean() > 25, f"image {k} is dark"
            seconds += picture.info["duration"] / 1000
        assert 4 <= seconds <= 6


def test_targets_of_the_makefile_are_no_files() -> None:
    """Else a folder of that name would be taken for what the target makes."""
    text = text_of(ROOT / "Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE)) <= set(phony[1].split())


def test_files_named_in_the_text_exist() -> None:
    folders = ("examples", "benchmarks", "tools", "tests", "docs")
    pattern = re.compile(rf"(?<![\w/])((?:{'|'.join(folders)})/[\w/.-]*\w\.\w+)")
    named = {name for page in PAGES for name in pattern.findall(text_of(page))}
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_decisions_are_numbered_one_by_one() -> None:
    numbers = [int(path.name[:4]) for path in sorted((DOCS / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_versions_agree() -> None:
    assert re.search(rf"^version: {re.escape(rollmill.__version__)}$", text_of(ROOT / "CITATION.cff"), re.MULTILINE)
    assert f"## [{rollmill.__version__}]" in text_of(ROOT / "CHANGELOG.md")
