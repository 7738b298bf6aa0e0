"""Opening sources: what is refused, and in which words."""

import os

import pytest

from ep_overlap_mcp.sources.files import LARGEST, decoded, open_text
from ep_overlap_mcp.sources.reading import UnreadableError


def refusal(path, root):
    with pytest.raises(UnreadableError) as caught:
        open_text(path, [root])
    return str(caught.value)


def test_a_file_under_a_root_is_opened(tmp_path):
    """The plain case, with a BOM and Windows line ends left to the readers."""
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfx: 1\r\n")
    assert open_text(tmp_path / "a.yaml", [tmp_path]) == "x: 1\r\n"


def test_the_working_directory_is_the_default_root(tmp_path, monkeypatch):
    """Relative names are taken from it."""
    (tmp_path / "a.yaml").write_text("x: 1")
    monkeypatch.chdir(tmp_path)
    assert open_text("a.yaml") == "x: 1"


def test_a_missing_file_is_not_found(tmp_path):
    """The message names the file as the caller wrote it."""
    assert refusal(tmp_path / "absent.sh", tmp_path) == f"{tmp_path}/absent.sh: not found; check the path"


def test_a_directory_is_refused(tmp_path):
    """A directory holds no configuration."""
    assert "a directory" in refusal(tmp_path, tmp_path)


def test_binary_content_is_not_text_and_never_shown(tmp_path):
    """NUL bytes mark a compiled file; none of its content appears."""
    (tmp_path / "train.sh").write_bytes(b"\x7fELF secret\0\0")
    message = refusal(tmp_path / "train.sh", tmp_path)
    assert "train.sh" in message
    assert "not text" in message
    assert "secret" not in message


def test_ten_megabytes_are_too_large(tmp_path):
    """Logs and checkpoints are refused before they are read."""
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(10 * 1024 * 1024)
    assert "too large" in refusal(tmp_path / "big.yaml", tmp_path)


def test_a_link_out_of_the_root_is_refused(tmp_path):
    """Links are resolved before the place is judged."""
    outside = tmp_path / "outside.yaml"
    outside.write_text("secret: 1")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.yaml").symlink_to(outside)
    message = refusal(inside / "link.yaml", inside)
    assert "outside the allowed directories" in message
    assert "secret" not in message


def test_a_loop_of_links_is_refused(tmp_path):
    """Nothing hangs on a link to itself."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop" in refusal(tmp_path / "loop", tmp_path)


def test_a_pipe_is_refused_without_waiting(tmp_path):
    """Opening a FIFO for reading would block."""
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe", tmp_path)


def test_a_growing_file_is_read_to_the_bound_only(tmp_path):
    """The bound holds for what is read, whatever the size was when the file was opened."""
    (tmp_path / "edge.yaml").write_bytes(b"#" * LARGEST)
    assert len(open_text(tmp_path / "edge.yaml", [tmp_path])) == LARGEST


def test_utf_16_with_its_mark_is_text():
    """Editors on Windows write it."""
    assert decoded("x: 1\n".encode("utf-16"), "a.yaml") == "x: 1\n"


def test_latin_1_in_a_comment_is_text():
    """An author's name in a comment does not matter to anything."""
    assert decoded(b"# Andr\xe9\nx: 1\n", "a.yaml") == "# Andr\xe9\nx: 1\n"


def test_latin_1_in_a_value_is_refused_with_its_line():
    """A value in an unknown encoding is not guessed."""
    with pytest.raises(UnreadableError, match="line 2 is not UTF-8"):
        decoded(b"x: 1\ny: \xe9\n", "a.yaml")
