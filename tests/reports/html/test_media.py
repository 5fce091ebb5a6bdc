"""Videos and images stand in the page as long as they are small, and come from the run's folder only."""

import base64
from pathlib import Path

from rollmill.reports.html import media
from rollmill.reports.html.media import FILE_BYTES, Media, filmstrip


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_small_files_are_inside_and_large_ones_linked(tmp_path: Path) -> None:
    shown = Media(tmp_path)
    video = shown.figure(write(tmp_path / "videos" / "a<b.mp4", b"12345"), "what <it> shows")
    assert "data:video/mp4;base64,MTIzNDU=" in video
    assert "what &lt;it&gt; shows" in video
    assert '<a href="videos/a&lt;b.mp4">' in video
    large = shown.figure(write(tmp_path / "large.mp4", bytes(FILE_BYTES + 1)), "too large")
    assert "data:" not in large
    assert "too large" in large
    assert '<a href="large.mp4">large.mp4</a> (8.00 MB)' in large
    image = shown.figure(write(tmp_path / "a.png", b"png"), "a sheet")
    assert f'<img src="data:image/png;base64,{base64.b64encode(b"png").decode()}" alt="a sheet"' in image


def test_all_files_of_a_page_share_a_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(media, "PAGE_BYTES", 12)
    shown = Media(tmp_path)
    videos = [shown.figure(write(tmp_path / f"{k}.mp4", b"12345")) for k in range(4)]
    assert ["<video" in video for video in videos] == [True, True, False, False]


def test_what_lies_elsewhere_is_not_given_away(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", b"passwords")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "x.mp4").symlink_to(secret)
    (folder / "gone.mp4").symlink_to(folder / "nowhere.mp4")
    (folder / "folder.mp4").mkdir()
    (folder / "kept.mp4").write_bytes(b"film")
    (folder / "same.mp4").symlink_to(folder / "kept.mp4")
    for name, said in (("x.mp4", "leads out of"), ("folder.mp4", "it is a folder, not a file")):
        shown = Media(folder).figure(folder / name)
        assert said in shown
        assert "data:" not in shown
    for name in ("gone.mp4", "missing.mp4"):
        assert Media(folder).figure(folder / name) == "", name
    assert "data:video/mp4" in Media(folder).figure(folder / "same.mp4"), "a link within the folder leads nowhere else"


def test_a_filmstrip_shows_small_images_pixel_by_pixel() -> None:
    text = filmstrip("lowest <return>", [(b"a", (16, 12), "step 0"), (b"b", (640, 480), "step 9")])
    assert "lowest &lt;return&gt;" in text
    assert 'width="16" height="12" alt="step 0" class="small"' in text
    assert 'width="640" height="480" alt="step 9"/>' in text
