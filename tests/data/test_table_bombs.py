"""Tables that unpack to far more than their size: refused on one line, before they fill the memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.later import Later

import ipfl
from ipfl.data.own.archives import max_unpacked_bytes
from ipfl.errors import InputError

pd, pa, pq = Later("pandas"), Later("pyarrow"), Later("pyarrow.parquet")


def refused_here(path: Path) -> str:
    """What is said about the file; the process grows at most by what a file of its size may take."""
    small = pd.DataFrame({**column(40), "size": 1.0})
    small.to_parquet(path.parent / "small.parquet")  # what is imported for it takes memory, too
    ipfl.Task.load(path=path.parent / "small.parquet", client="town", target="state")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    with pytest.raises(InputError) as error:
        ipfl.Task.load(path=path, client="town", target="state")
    assert memory("VmHWM") - before < max_unpacked_bytes(path)
    (said,) = str(error.value).splitlines()
    return said


ANSWER = """
import sys
from pathlib import Path
from tests.data.test_table_bombs import refused_here
for line in sys.stdin:
    print(refused_here(Path(line.strip())), flush=True)
"""
Refusal = Callable[[Path], str]


@pytest.fixture(scope="module")
def refusal() -> Iterator[Refusal]:
    """The same from a process of its own: here, what earlier tests have freed is used beside the limit."""
    command, root = [sys.executable, "-c", ANSWER], Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(path: Path) -> str:
            asked.write(f"{path}\n")
            asked.flush()
            return answers.readline().rstrip()

        yield ask
        asked.close()


def memory(name: str) -> int:
    """Bytes, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def column(rows: int) -> dict[str, Any]:
    return {"town": np.arange(rows) % 4, "state": np.arange(rows) % 2}


class TestParquet:
    """Each unpacks to more than its size times 200, plus 256 MB; all but wide ones are below 2 MB."""

    def write(self, path: Path, columns: dict[str, Any], **more: Any) -> Path:
        pq.write_table(pa.table(columns), path, compression="zstd", **more)
        assert path.stat().st_size < 2**21
        return path

    def test_many_values_by_the_footer_alone(self, tmp_path: Path, refusal: Refusal) -> None:
        """Two columns of 20 million: as numbers of 8 bytes they take 320 MB. Nothing else of it is read."""
        path = self.write(
            tmp_path / "a.parquet", dict.fromkeys(("town", "state"), np.zeros(20_000_000, np.int8))
        )
        content = path.read_bytes()
        footer = 8 + int.from_bytes(content[-8:-4], "little")
        path.write_bytes(b"PAR1" + b"?" * (len(content) - 4 - footer) + content[-footer:])
        assert "holds 40000000 values" in refusal(path)

    def test_a_large_value(self, tmp_path: Path, refusal: Refusal) -> None:
        """A value of 280 MB, of which zstd makes 10 KB: by the footer, and by what happens if that lies."""
        big = pa.array([bytes(280_000_000), b"b"], type=pa.large_binary())
        plain = {"use_dictionary": False, "write_statistics": False}
        path = self.write(tmp_path / "a.parquet", {**column(2), "text": big}, **plain)
        assert "in 2800001" in refusal(path)
        group = pq.read_metadata(path).row_group(0)
        content = path.read_bytes()
        for size in (group.total_byte_size, group.column(2).total_uncompressed_size):
            assert content.count(varint(size)) == 1
            content = content.replace(varint(size), varint(1000, len(varint(size))))
        path.write_bytes(content)
        assert pq.read_metadata(path).row_group(0).total_byte_size == 1000
        assert refusal(path).endswith("unpacks to more than fits into memory")

    def test_one_text_for_all_rows(self, tmp_path: Path, refusal: Refusal) -> None:
        """The file has a text of 1 MB once, and 1,500 numbers that say where it stands."""
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1500, np.int32)), pa.array(["x" * 10**6]))
        path = self.write(tmp_path / "a.parquet", {**column(1500), "text": text}, store_schema=False)
        assert pq.read_metadata(path).row_group(0).total_byte_size < 2**21
        assert refusal(path).endswith("unpacks to more than fits into memory")

    def test_a_text_that_becomes_a_hundred_columns(self, tmp_path: Path, refusal: Refusal) -> None:
        """500,000 rows · 100 categories · 8 bytes: 400 MB."""
        text = pa.array([f"n{one}" for one in range(100)]).take(pa.array(np.arange(500_000) // 5000))
        path = self.write(tmp_path / "a.parquet", {**column(500_000), "text": text})
        assert refusal(path).endswith("unpacks to more than fits into memory")

    def test_too_many_columns(self, tmp_path: Path, refusal: Refusal) -> None:
        pq.write_table(pa.table({f"c{one}": [1] for one in range(10_001)}), tmp_path / "a.parquet")
        assert "has 10001 columns" in refusal(tmp_path / "a.parquet")


def varint(number: int, length: int = 0) -> bytes:
    """A number as it stands in a Parquet file's footer, with as many bytes as are wanted."""
    left, found = 2 * number, bytearray()
    while left >= 128 or len(found) + 1 < length:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])


class TestCsv:
    @pytest.mark.parametrize("before", ["", "\n\n", "town,state\n\n"])
    def test_too_many_columns_are_not_parsed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
    ) -> None:
        """In the line of names, below empty lines, or in a row."""
        (tmp_path / "a.csv").write_text(f"{before}town,state{',1' * 200_000}\n1,2\n")
        monkeypatch.setattr("pandas.read_csv", lambda *_, **__: pytest.fail("it is parsed"))
        assert "has 200002 columns or more, at most 10000 are read" in refused_here(tmp_path / "a.csv")

    def test_lines_that_repeat(self, tmp_path: Path, refusal: Refusal) -> None:
        """400 MB of text in 800 KB."""
        rows = gzip.compress(b"0,1,2\n1,0,3\n" * 80_000)
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"town,state,size\n") + 400 * rows)
        assert "cannot read" in refusal(tmp_path / "a.csv.gz")


def test_a_wide_table_is_no_bomb() -> None:
    wide = pd.DataFrame({**column(40), **{number: np.arange(40.0) for number in range(300)}})
    named = wide.rename(columns=str)  # names that are numbers are found like others
    by_number, by_name = (
        ipfl.Task.from_dataframe(rows, client="town", target="state").data for rows in (wide, named)
    )
    assert by_number.input_shape == (300,)
    assert by_number.parts(0).train.x.tobytes() == by_name.parts(0).train.x.tobytes()
