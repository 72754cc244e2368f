"""The choice of the engine for each part of a night: this process, or Spark, and what tables need of Spark."""
import os
import shutil
from pathlib import Path

import psutil

from geminga.storage.errors import text_of
from geminga.storage.jobs.compacting.engines import ApartEngine, LocalEngine, NoSpark, NotInstalled, Spark
from geminga.storage.tables.table_folders import local_folder
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host.host import core_count
from geminga.supervisor.tasks.job_socket import CannotRun

PARQUET, ICEBERG = "parquet", "iceberg"      # formats of tables


class Engines:
    """The choice of the engine for each compaction: this process, or Spark, which is started when first needed.

    With engine = "auto" Spark does what reads more than in_process_bytes, where it is installed: its start takes longer
    than the same steps take in this process for less.
    """

    def __init__(self, config: Config, *, is_night: bool):
        self._config, self._options, self._is_night = config, config.nightly, is_night
        self._spark: Spark | None = None
        self._here = ApartEngine()

    def __repr__(self) -> str:
        return f"<Engines {self._options.engine} is_night={self._is_night} spark={self._spark}>"

    def __enter__(self) -> "Engines":
        for path in (self._config.data_dir / "nightly").glob("scratch-*"):      # left by processes that were killed
            if not psutil.pid_exists(int(path.name.rpartition("-")[2])):
                shutil.rmtree(path, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._here.close()
        if self._spark is not None:
            self._spark.close()

    def for_bytes(self, size: int) -> LocalEngine | Spark:
        """Return the engine for a compaction that reads `size` bytes.  Raises CannotRun."""
        if self._is_small(size):
            return self._here
        # The broker's service can run no Java, so what is wanted on demand is done here, whatever its size.
        return self._spark_or_here(self._options.engine == "auto" and not self._is_night)

    def for_tables(self, size: int) -> LocalEngine | Spark:
        """Return the engine for an export that reads `size` bytes.  Raises CannotRun."""
        options = self._options
        if needs_spark(self._config):
            if options.engine == "here":
                raise CannotRun("nightly.tables needs Spark for its url or format, and nightly.engine is here")
            engine = self._spark_or_here(False)
            if isinstance(engine, LocalEngine):
                raise CannotRun("nightly.tables needs Spark for its url or format, and Spark is not installed")
            return engine
        return self._here if self._is_small(size) else self._spark_or_here(False)

    def _is_small(self, size: int) -> bool:
        """Whether this process does what reads `size` bytes, without asking for Spark."""
        options = self._options
        return not size or options.engine == "here" or (options.engine == "auto" and size <= options.in_process_bytes)

    def _spark_or_here(self, may_be_here: bool) -> LocalEngine | Spark:
        """Return Spark, which is started if necessary.  Raises CannotRun.

        may_be_here: whether this process does the work if Spark cannot be started.
        """
        options = self._options
        if self._spark is None:
            master = options.master or f"local[{options.cores or core_count()}]"
            try:
                scratch = self._config.data_dir / "nightly" / f"scratch-{os.getpid()}"
                more = settings(self._config) if self._is_night and needs_spark(self._config) else {}
                self._spark = Spark(scratch, master, f"{options.memory_bytes >> 20}m", settings=more)
            except NoSpark as error:
                if may_be_here or (options.engine == "auto" and isinstance(error, NotInstalled)):
                    return self._here
                raise CannotRun(f"{error}; --engine here compacts in one process, whatever the size") from None
        return self._spark


# -- Spark for tables

def needs_spark(config: Config) -> bool:
    """Whether tables need Spark: its Java libraries know the place, or Iceberg."""
    options = config.tables
    return bool(options.url) and (options.format == ICEBERG or local_folder(options.url) is None)


def settings(config: Config) -> dict[str, str]:
    """Return the properties of Spark that tables need.  Raises CannotRun."""
    options = config.tables
    more: dict[str, str] = {}
    if options.packages:      # the service's user has no home to keep them in
        more = {"spark.jars.packages": ",".join(options.packages),
                "spark.jars.ivy": str(config.data_dir.resolve() / "nightly" / "packages")}
    if not options.settings_file:
        return more
    try:
        lines = Path(options.settings_file).read_text().splitlines()
    except OSError as error:
        raise CannotRun(f"nightly.tables.settings_file: {text_of(error)}") from None
    except UnicodeDecodeError as error:
        raise CannotRun(f"nightly.tables.settings_file: {options.settings_file}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if not value.strip():
            raise CannotRun(f"{options.settings_file}:{number}: it has a name without a value")
        more[name] = value.strip()
    return more
