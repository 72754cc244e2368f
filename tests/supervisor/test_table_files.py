"""A table is a Parquet file or a folder of such files: found, joined by names, read in order, known again."""
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.supervisor.tables.files import BadTable, Table


def write(path, rows, **kinds):
    """Write a Parquet file of rows (dicts), with Arrow types of some columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows) if not kinds else pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
    pq.write_table(table, path, row_group_size=3)


def rows_of(table, first=0, columns=None):
    return [row for rows in table.batches(first, columns or table.schema.names) for row in rows.batch.to_pylist()]


def numbered(count, start=0):
    return [{"n": start + number} for number in range(count)]


def test_a_file_is_a_table_whatever_its_name(tmp_path):
    write(tmp_path / "rows.data", numbered(10))
    table = Table(str(tmp_path / "rows.data"))
    assert (table.rows, rows_of(table)) == (10, numbered(10))


def test_files_are_read_in_the_order_of_their_paths_and_hidden_ones_are_not(tmp_path):
    write(tmp_path / "b.parquet", numbered(4, 4))
    write(tmp_path / "a" / "deep" / "z.parq", numbered(4))
    write(tmp_path / "c.pq", numbered(2, 8))
    for hidden in ("_d.parquet", ".e.parquet", "_temporary/f.parquet", ".g/h.parquet"):
        write(tmp_path / hidden, numbered(1, 99))
    (tmp_path / "README.txt").write_text("no table")
    assert rows_of(Table(str(tmp_path))) == numbered(10)


@pytest.mark.parametrize("first", range(12))
def test_reading_begins_at_any_row(tmp_path, first):
    """Row groups have three rows, and files seven and four."""
    write(tmp_path / "a.parquet", numbered(7))
    write(tmp_path / "b.parquet", numbered(4, 7))
    table = Table(str(tmp_path))
    assert rows_of(table, first) == numbered(11)[first:]
    assert [rows.first for rows in table.batches(first, ["n"])][:1] == [first][:11 - first]


def test_folders_are_columns_of_text_or_of_whole_numbers(tmp_path):
    write(tmp_path / "day=2026-11-27" / "hour=7" / "a.parquet", numbered(1))
    write(tmp_path / "day=2026-11-28" / "hour=__HIVE_DEFAULT_PARTITION__" / "b.parquet", numbered(1, 1))
    write(tmp_path / "day=a%2Fb" / "c.parquet", numbered(1, 2))
    assert rows_of(Table(str(tmp_path))) == [
        {"n": 0, "day": "2026-11-27", "hour": 7}, {"n": 1, "day": "2026-11-28", "hour": None},
        {"n": 2, "day": "a/b", "hour": None}]


def test_numbers_with_leading_zeros_stay_text_and_a_files_own_column_comes_first(tmp_path):
    write(tmp_path / "m=01" / "n=7" / "a.parquet", numbered(1))
    assert rows_of(Table(str(tmp_path))) == [{"n": 0, "m": "01"}]


def test_files_are_joined_by_the_names_of_their_columns(tmp_path):
    write(tmp_path / "a.parquet", [{"n": 1, "x": None}], n=pa.int64(), x=pa.null())
    write(tmp_path / "b.parquet", [{"x": "y", "n": 2}])
    write(tmp_path / "c.parquet", [{"n": 3, "z": True}])
    assert rows_of(Table(str(tmp_path))) == [
        {"n": 1, "x": None, "z": None}, {"n": 2, "x": "y", "z": None}, {"n": 3, "x": None, "z": True}]


def test_a_column_that_a_file_lacks_may_be_null(tmp_path):
    required = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("x", pa.int64(), nullable=False)])
    pq.write_table(pa.Table.from_pylist([{"n": 1, "x": 1}], required), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([{"n": 1}], pa.schema([required.field("n")])), tmp_path / "b.parquet")
    schema = Table(str(tmp_path)).schema
    assert (schema.field("n").nullable, schema.field("x").nullable) == (False, True)


def test_another_type_of_a_column_is_refused_with_both_files(tmp_path):
    write(tmp_path / "a.parquet", [{"n": 1}])
    write(tmp_path / "b.parquet", [{"n": "1"}])
    with pytest.raises(BadTable, match=r"b\.parquet: column n is string, and int64 in .*a\.parquet"):
        Table(str(tmp_path))


def test_dictionaries_are_read_as_their_values(tmp_path):
    table = pa.table({"x": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    read = Table(str(tmp_path))
    assert read.schema.field("x").type == pa.string() and rows_of(read) == [{"x": one} for one in "ab"] + [
        {"x": None}, {"x": "a"}]


def test_a_name_with_a_dot_is_a_column(tmp_path):
    write(tmp_path / "a.parquet", [{"a.b": 1, "a": 2}])
    assert rows_of(Table(str(tmp_path)), columns=["a.b"]) == [{"a.b": 1}]


@pytest.mark.parametrize("change", ["cut", "text", "empty", "footer"])
def test_a_damaged_file_is_named(tmp_path, change):
    path = tmp_path / "a.parquet"
    write(path, numbered(10))
    data = path.read_bytes()
    damaged = {"cut": data[:-20], "text": b"n\n1\n", "empty": b"", "footer": data[:-400] + bytes(392) + data[-8:]}
    path.write_bytes(damaged[change])
    with pytest.raises(BadTable, match=r"a\.parquet: it is no Parquet file, or damaged: "):
        Table(str(tmp_path))


def test_damage_of_rows_is_found_when_they_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(10_000))}), path, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadTable, match=r"a\.parquet: it is no Parquet file, or damaged: "):
        rows_of(Table(str(path)))


def test_a_file_that_changes_while_it_is_imported_is_refused(tmp_path):
    write(tmp_path / "a.parquet", numbered(10))
    table = Table(str(tmp_path))
    write(tmp_path / "a.parquet", numbered(10, 1))
    with pytest.raises(BadTable, match="it was changed"):
        rows_of(table)


def test_a_folder_without_a_parquet_file_is_refused(tmp_path):
    with pytest.raises(BadTable, match="has no Parquet file"):
        Table(str(tmp_path))


def test_the_identity_of_the_first_files_is_that_of_their_names_sizes_and_footers(tmp_path):
    write(tmp_path / "a.parquet", numbered(3))
    write(tmp_path / "b.parquet", numbered(3))
    before = Table(str(tmp_path)).chain
    write(tmp_path / "c.parquet", numbered(3))
    assert Table(str(tmp_path)).chain[:3] == before
    write(tmp_path / "b.parquet", numbered(3, 1))
    changed = Table(str(tmp_path)).chain
    assert changed[:2] == before[:2] and changed[2] != before[2]
    (tmp_path / "a.parquet").rename(tmp_path / "a1.parquet")
    assert Table(str(tmp_path)).chain[1] != before[1]


def test_rows_are_read_in_batches_of_bounded_size(tmp_path):
    """A row of 1 MiB is one of eight in a batch."""
    pq.write_table(pa.table({"x": [bytes([number]) * (1 << 20) for number in range(20)]}), tmp_path / "a.parquet",
                   use_dictionary=False)
    sizes = [len(rows.batch) for rows in Table(str(tmp_path)).batches(0, ["x"])]
    assert sum(sizes) == 20 and max(sizes) <= 8
