"""Memory is bounded by what this process may take."""

from __future__ import annotations

from ep_overlap_mcp.smoke.memory import GIB, free_gib


def test_the_limit_of_a_control_group_counts(tmp_path):
    """A container has less than its host; the group's limit less its use is what is free."""
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB + GIB // 2}\n")
    assert free_gib(tmp_path) == 0.5


def test_without_a_limit_the_host_counts(tmp_path):
    """`max` is no number, and outside of a group there is no file."""
    host = free_gib(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(free_gib(tmp_path) - host) < 1.0
    assert host > 0.1
