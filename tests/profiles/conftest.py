"""Small profiles, written the way Kineto and Nsight Systems write them."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kineto_events import Event


@pytest.fixture
def write_kineto(tmp_path: Path) -> Callable[..., Path]:
    """Write a Kineto trace of these events; gzip when the name says so."""

    def write(events: Sequence[Event], name: str = "trace.json", **head: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schemaVersion": 1, **head, "traceEvents": events, "traceName": "t"}, indent=2)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.fixture
def write_nsys(tmp_path: Path) -> Callable[..., Path]:
    """Write an export with the tables given, each a list of rows as dictionaries; strings get their ids."""

    def write(name: str = "profile.sqlite", **tables: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        strings: dict[str, int] = {}
        with closing(sqlite3.connect(path)) as database:
            for table, rows in tables.items():
                columns = list(dict.fromkeys(column for row in rows for column in row))
                quoted = ", ".join(f'"{column}"' for column in columns)
                database.execute(f"CREATE TABLE {table} ({quoted})")
                for row in rows:
                    values = [
                        strings.setdefault(value, len(strings) + 1) if column.endswith("Name") else value
                        for column, value in ((column, row.get(column)) for column in columns)
                    ]
                    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
            database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(at, text) for text, at in strings.items()])
            database.commit()
        return path

    return write
