"""The data folder's format number: a program that opens a folder to write leaves newer formats alone."""
import pytest

from geminga.storage import format

from .test_serve import run

pytestmark = pytest.mark.slow

NEWER = b"%d\n" % (format.FOLDER_VERSION + 1)
COMMANDS = [("serve", "--port", 0, "--http-port", 0, "--data-dir"), ("verify", "--repair"), ("verify",),
            ("nightly", "--data-dir")]


def number(data_dir):
    return format.format_path(data_dir).read_text()


def everything(data_dir):
    return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_folder_that_is_made_or_taken_over_has_the_programs_number(fresh_broker):
    assert number(fresh_broker.data_dir) == f"{format.FOLDER_VERSION}\n"
    assert fresh_broker.stop() == 0
    format.format_path(fresh_broker.data_dir).unlink()      # folders had no such file in the past
    fresh_broker.start()
    assert number(fresh_broker.data_dir) == f"{format.FOLDER_VERSION}\n"


@pytest.mark.parametrize(("command", "said"), [
    *((command, NEWER) for command in COMMANDS), (COMMANDS[0], b"unfinished\n"), (COMMANDS[0], b"")])
def test_a_folder_of_a_newer_program_is_refused_in_one_line_and_left_alone(tmp_path, command, said):
    (tmp_path / "catalogue.sqlite").write_bytes(b"of another time")
    format.format_path(tmp_path).write_bytes(said)
    before = everything(tmp_path)
    status, printed, complaints = run(*command, tmp_path)
    complaints = [line for line in complaints if "optimisation" not in line]
    assert status and not printed
    assert len(complaints) == 1 and str(tmp_path) in complaints[0] and "Traceback" not in complaints[0]
    assert everything(tmp_path) == before
