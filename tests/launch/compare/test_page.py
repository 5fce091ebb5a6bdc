"""The page of an experiment."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from experimenting import offline, online, write_run

from rollmill.launch.compare.aggregate import aggregate
from rollmill.launch.compare.page import render
from rollmill.pbt.ledger import Ledger


def parsed(folder: Path) -> tuple[str, ElementTree.Element]:
    page = render(aggregate(folder))
    return page, ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_is_one_well_formed_file_and_escapes_names(tmp_path: Path) -> None:
    for gamma, seed in [(g, s) for g in (0.9, 0.99) for s in range(3)]:
        write_run(tmp_path / f"r{gamma}{seed}", online(seed, learning={"gamma": gamma}), [gamma * k for k in range(20)])
    write_run(tmp_path / "odd", online(env="<script>alert(1)</script>"), [1.0])
    page, root = parsed(tmp_path)
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert len(root.findall(".//svg")) == 6, "all groups and profiles (wide and narrow), each of both; no odd one"
    assert [title.text for title in root.iter("h2")] == ["<script>alert(1)</script>", "CartPole-v1"]
    assert "gamma-0.99 (n = 3)" in page


def test_few_seeds_are_thin_lines_and_five_a_band(tmp_path: Path) -> None:
    for gamma, count in ((0.9, 3), (0.99, 5)):
        for seed in range(count):
            write_run(tmp_path / f"g{gamma}s{seed}", online(seed, learning={"gamma": gamma}), [1.0 * seed] * 20)
    page, _ = parsed(tmp_path)
    assert page.count('class="seed') == 3 * 3, "all groups together (for wide and narrow pages), and each by itself"
    assert page.count('class="band') == 3 + 2, "two of them around the profile of five runs"
    assert "n = 3, 1 (0 to 2)" in page
    assert "n = 5, 2 (± 1.96)" in page


def test_a_section_for_each_environment_and_offline_runs_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "pole", online(), [500.0] * 3)
    write_run(tmp_path / "doom", online(env="doom_basic"), [80.0] * 3)
    write_run(tmp_path / "dt", offline(tmp_path / "gone"), [2.0, 1.0], metric="validation/loss")
    write_run(tmp_path / "w", {"seed": 0, "collect": {}, "dynamics": {}, "controller": {}}, [])
    page, root = parsed(tmp_path)
    titles = [title.text for title in root.iter("h2")]
    assert titles == ["CartPole-v1", "doom_basic", "environment not known, learnt offline"]
    assert "What matters" not in page
    assert "Not compared: w (world)." in page
    assert "the lowest is best" in page


def test_many_settings_share_a_column_and_say_what_deviates(tmp_path: Path) -> None:
    plain = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    write_run(tmp_path / "one", online(learning=plain), [1.0, 2.0])
    write_run(tmp_path / "two", online(1, learning=plain), [1.0, 2.0])
    write_run(tmp_path / "odd", online(learning={**plain, "a": 2, "c": 3}), [1.0, 2.0])
    write_run(tmp_path / "other", online(learning={**plain, "b": 2, "d": 3, "e": 4}), [1.0, 2.0])
    _, root = parsed(tmp_path)
    table = next(table for table in root.iter("table") if table.findtext("thead/tr/th[2]") == "differs from most in")
    rows = {row.findtext("td[1]"): row.findtext("td[2]") for row in table.findall("tbody/tr")}
    assert rows["odd"] == "learning.a 2, learning.c 3"
    assert rows["other"] == "learning.b 2, learning.d 3, learning.e 4"
    assert "nothing" in rows.values()


def test_statistics_of_few_runs_are_a_table_and_profiles(tmp_path: Path) -> None:
    for gamma, shift in ((0.9, 0.0), (0.99, 3.0)):
        for env in ("CartPole-v1", "Acrobot-v1"):
            for seed in range(5):
                settings = online(seed, env, learning={"gamma": gamma})
                write_run(tmp_path / f"{env}{gamma}{seed}", settings, [shift + seed] * 20)
    page, root = parsed(tmp_path)
    assert [title.text for title in root.iter("h2")] == ["Acrobot-v1", "CartPole-v1", "All environments"]
    tables = [table for table in root.iter("table") if table.findtext("thead/tr/th[3]") == "IQM"]
    assert [len(table.findall("tbody/tr")) for table in tables] == [2, 2, 2]
    assert tables[2].findtext("tbody/tr[2]/td[1]") == "gamma-0.9"
    # of 25 pairs, the worse one wins 1 (4 against 3) and three are draws (3 and 3, 4 and 4 are; 4 against 3 is won)
    assert tables[2].findtext("tbody/tr[2]/td[5]") == "0.92"
    assert "performance profiles, Acrobot-v1, CartPole-v1" in page


def test_the_lineage_of_a_population_of_separate_runs(tmp_path: Path) -> None:
    for member in range(2):
        write_run(tmp_path / f"member-{member}", online(member), [1.0, 2.0])
    page, _ = parsed(tmp_path)
    assert "Lineage" not in page
    row = {"frames": 100, "error": 0.1, "episodes": 20, "settings": {"learning.gamma": 0.9}}
    rows = [{"member": k, "objective": float(k), **row} for k in range(2)]
    moves = [{"member": 0, "from": 1, "settings": {"learning.gamma": [0.9, 0.95]}}]
    begin = [{"learning.gamma": 0.9}, {"learning.gamma": 0.9}]
    Ledger(tmp_path).begin([{"begin": begin}, {"round": 1, "members": rows, "moves": moves, "kept": {}}])
    page, root = parsed(tmp_path)
    assert [title.text for title in root.iter("h2")][-1] == "Population"
    assert "Lineage" in page
    assert "Decisions of 1 rounds" in page
