"""A file of data as an SQLite database that survives a crash: created, checked, and shared by threads."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

from hinet.errors import FileError

RETRY_SECONDS = 0.01  # time between two attempts to switch to write-ahead logging
HEADER_BYTES = 100  # length of the header of an SQLite file
MAGIC = b"SQLite format 3\0"


def utc_now() -> str:
    """Return the time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class StoreError(FileError):
    """The file cannot be read or written now, such as on a full disk or while it is locked."""


class DatabaseKind(NamedTuple):
    """The contents of a database, as messages call them, with the marks and tables of its files."""

    contents: str
    application: int  # application id
    format: int
    schema: str

    @property
    def other(self) -> str:
        """Message for a database of another kind."""
        return f"is another database; name a new file for {self.contents}"


@dataclass(frozen=True, eq=False)
class Database:
    """A database, shared by all threads.

    Every method raises StoreError if the file cannot be read or written now.
    """

    path: Path
    connection: sqlite3.Connection
    lock: Lock
    kind: DatabaseKind

    @classmethod
    def open_kind(cls, path: Path, kind: DatabaseKind, lock_seconds: float) -> Self:
        """Open or create a file, even from several processes concurrently; wait ``lock_seconds`` for other writers.

        Raises
        ------
        FileError
            If the file is of another kind, which is then left unchanged, or cannot be opened.
        """
        try:
            _check_header(path, kind)
            connection = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None, check_same_thread=False)
            try:
                _prepare(path, connection, kind, lock_seconds)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise FileError(path, f"cannot be opened as a {kind.contents} file: {error}") from None
        return cls(path, connection, Lock(), kind)

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self.connection.close()

    @contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection while no other thread uses it."""
        with self.lock:
            try:
                yield self.connection
            except sqlite3.Error as error:
                message = f"{self.kind.contents} cannot be read or written now: {error}"
                raise StoreError(self.path, message) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction, which is on disk when the block ends."""
        with self.locked() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:  # a failed COMMIT also leaves it open
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    def select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self.locked() as connection:
            return connection.execute(query, values).fetchall()


def _check_header(path: Path, kind: DatabaseKind) -> None:
    """Raise FileError unless a file is of a kind, empty or missing; SQLite itself would change other files."""
    if not path.exists():
        return
    if not path.is_file():
        raise FileError(path, f"is not a file; name a new file for {kind.contents}")
    with path.open("rb") as stream:
        header = stream.read(HEADER_BYTES)
    if not header:
        return
    if not header.startswith(MAGIC):
        raise FileError(path, f"cannot be opened as a {kind.contents} file: it is not a database; name a new file")
    schema, application = (int.from_bytes(header[start : start + 4], "big") for start in (40, 68))
    is_empty = not schema and not application  # its contents may still be in the write-ahead log
    if application != kind.application and not is_empty:
        raise FileError(path, kind.other)


def _prepare(path: Path, connection: sqlite3.Connection, kind: DatabaseKind, lock_seconds: float) -> None:
    """Create the tables of a new file, and switch to write-ahead logging."""
    if _marks(connection) != (kind.application, kind.format):
        connection.execute("BEGIN EXCLUSIVE")  # another process then finds all tables
        try:
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                marks = f"PRAGMA application_id = {kind.application}; PRAGMA user_version = {kind.format};"
                for statement in (kind.schema + marks).split(";")[:-1]:  # executescript would commit
                    connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        application, format = _marks(connection)
        if application != kind.application:
            raise FileError(path, kind.other)
        if format != kind.format:
            remedy = (
                "install that version" if format > kind.format else "export it with that version, and name a new file"
            )
            raise FileError(
                path, f"has the format {format} of another version of hinet, expected {kind.format}; {remedy}"
            )
    _switch_to_wal(connection, lock_seconds)
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk when it returns


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application id and the format of a file."""
    application, format = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return application, format


def _switch_to_wal(connection: sqlite3.Connection, lock_seconds: float) -> None:
    """Switch to write-ahead logging; SQLite itself does not wait for other processes that switch too."""
    deadline = time.monotonic() + lock_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS)
