"""The configuration: the source of each key's value, and checks before a process starts.

    command line > GEMINGA_<SECTION>_<KEY> > PULSAR_PREFIX_<name> > file (TOML, or Pulsar's key=value) > defaults

KEYS is derived from the options' dataclasses that the layers declare: a field that is added there is a key here.  Only
the supervisor reads the file and the environment; each layer is given its part of a Config.
"""
import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from geminga.storage.options import StorageOptions
from geminga.storage.runtime.log import LogOptions
from geminga.storage.runtime.similar_names import likest
from geminga.supervisor.configuration import usable_paths
from geminga.supervisor.configuration.properties import (
    TRANSLATED,
    ConfigError,
    Setting,
    from_environment,
    nearest,
    parse,
    texts_in_force,
    translate,
)
from geminga.supervisor.configuration.quantities import reader
from geminga.supervisor.configuration.value_ranges import FORMS, MIB, RANGES
from geminga.supervisor.host import host
from geminga.workers.identity.options import (
    AuthenticationOptions,
    AuthorizationOptions,
    IdentityOptions,
    OidcOptions,
    Secret,
    TlsOptions,
)
from geminga.workers.options import WorkerOptions

__all__ = ["Config", "ConfigError", "KEYS", "load"]

# Ends of the keys of rates above which segments split, and below which they merge.
SCALING_RATES = "messages_in", "bytes_in", "messages_out", "bytes_out"
FRAME_OVERHEAD = 10 * 1024     # bytes that a frame may have beside the message, as in Pulsar
ENVIRONMENT_PREFIX = "GEMINGA_"
Settings = dict[str, Setting]
_NO_SECRET = Secret("")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """HTTP, apart from authentication and authorization."""

    hosts: tuple[str, ...] = ()                   # names in requests' Host header, beside those that the broker knows
    # Folders for backups over HTTP; none: authorized or local callers may use any folder.
    backup_folders: tuple[str, ...] = ()
    web_processes: int = 1                        # processes that serve messages over HTTP; 0: there is none


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The console, which shows and changes in a browser what administration over HTTP does."""

    enabled: bool = True                          # its pages are served
    read_only: bool = False                       # browsers may change nothing, here and over REST
    session_s: int = 12 * 3_600                   # after which somebody has to sign in again
    url: str = ""                                 # by which browsers reach it through a proxy; "": as they ask


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """Use of transactions; workers and owners have both as options of their own."""

    enabled: bool = True                          # transactions may be begun and used
    max_active: int = 0                           # open at once for each coordinator, which an owner is; 0: no limit


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Selection of the topics, consumers and producers that have series in /metrics."""

    topics: bool = True                           # of topics and their subscriptions; else only of namespaces
    topics_max: int = 500                         # topics with series; others are summed up by namespace
    segments: bool = False                        # of segments, instead of the scalable topics that they belong to
    property_labels: bool = False                 # whether series have labels of topics' properties
    topic_properties: tuple[str, ...] = ()        # properties that are labels, unless the namespace names others
    consumers: bool = False                       # of each consumer of those topics
    producers: bool = False                       # of each producer of those topics


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """Thresholds of alarms.  Percentages are of the control group's memory limit, or of the host's memory."""

    memory_percent: int = 85                      # used memory above this is an alarm
    memory_refuse_percent: int = 95               # above this, publishing is refused until it is less; 0: never
    transaction_s: int = 600                      # an open transaction that consumers wait for longer; 0: no alarm
    export_s: int = 48 * 3600                     # age of a message that is to be exported and is not; 0: no alarm
    replication_s: int = 600                      # ... of one that another cluster has not; 0: no alarm


@dataclass(frozen=True, slots=True)
class NightlyOptions:
    """Resources of the nightly job, and of compaction on demand."""

    # "here": in one process; "spark"; "auto": Spark above in_process_bytes.
    engine: str = "auto"
    in_process_bytes: int = 256 << 20
    master: str = ""                              # of Spark; empty: this host's cores
    cores: int = 0                                # of this host that Spark may use; 0: all
    memory_bytes: int = 640 << 20                 # of Spark's own process; a Python worker takes some 200 MiB more
    until: str = ""                               # HH:MM, local time at which a night has to be over; empty: no bound
    niceness: int = 10                            # 0 to 19; the disk's priority is always the lowest
    retain_keyless: bool = False                  # whether compaction keeps messages without a key
    check_interval_s: int = 60                    # between two checks which partitions exceed their threshold


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Tables that nights make of topics with the policy `export`."""

    url: str = ""                                 # folder, or a URL that Spark can write to; empty: no tables
    format: str = "parquet"                       # or "iceberg"
    packages: tuple[str, ...] = ()                # of Maven, GROUP:ARTIFACT:VERSION, that Spark needs for url or format
    settings_file: str = ""                       # Spark's properties, such as credentials; empty: none


@dataclass(frozen=True, slots=True)
class StandbyOptions:
    """Options of both sides: the broker that this one follows as a standby, and a standby that follows this one."""

    of: str = ""                                  # address of the other broker, pulsar:// or pulsar+ssl://; empty: none
    auth_params: Secret = _NO_SECRET              # credentials for the other one, as --auth-params has them
    trusted: str = ""                             # PEM file of authorities for its certificate; empty: the system's
    # Addresses of standbys that may copy this broker without credentials, where clients need none either.
    hosts: tuple[str, ...] = ()
    required: bool = False                        # whether a start needs the answer of the known standby


@dataclass(frozen=True, slots=True)
class Config:
    """All options of a broker.  load() replaces zeros and empty texts that stand for a computed default."""

    data_dir: Path = Path("data")                 # relative to the folder in which the broker is started
    cluster_name: str = "standalone"              # that clients and tools see
    http_port: int = 8080                         # of administration, HTTP lookup and metrics; 0 takes a free one
    http_bind: str = ""                           # address of this port; empty: network.bind
    workers: int = 0                              # processes that serve connections; 0: one per core
    owners: int = 0                               # processes that store partitions; 0: one per core
    drain_s: int = 0                              # that consumers have at SIGTERM to acknowledge; 0: it stops at once
    affinity: str = "none"                        # "spread" pins workers and owners to cores in turn; "none": no pins
    storage: StorageOptions = field(default_factory=StorageOptions)
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    transactions: TransactionOptions = field(default_factory=TransactionOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    console: ConsoleOptions = field(default_factory=ConsoleOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    nightly: NightlyOptions = field(default_factory=NightlyOptions)
    tables: TableOptions = field(default_factory=TableOptions)
    log: LogOptions = field(default_factory=LogOptions)
    alarms: AlarmOptions = field(default_factory=AlarmOptions)
    tls: TlsOptions = field(default_factory=TlsOptions)
    authentication: AuthenticationOptions = field(default_factory=AuthenticationOptions)
    oidc: OidcOptions = field(default_factory=OidcOptions)
    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)
    standby: StandbyOptions = field(default_factory=StandbyOptions)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)      # source of each key that one sets
    pulsar_texts: Mapping[str, str] = field(default_factory=dict, compare=False)     # settings by Pulsar's names

    @property
    def identity(self) -> IdentityOptions:
        return IdentityOptions(self.tls, self.authentication, self.authorization, self.oidc)


# Section: (field of Config, dataclass).  A key is "name" or "section.name".
SECTIONS = {"storage": ("storage", StorageOptions), "network": ("worker", WorkerOptions),
            "transactions": ("transactions", TransactionOptions),
            "http": ("http", HttpOptions), "console": ("console", ConsoleOptions),
            "metrics": ("metrics", MetricsOptions),
            "nightly": ("nightly", NightlyOptions), "nightly.tables": ("tables", TableOptions),
            "log": ("log", LogOptions), "alarms": ("alarms", AlarmOptions),
            "tls": ("tls", TlsOptions),
            "authentication": ("authentication", AuthenticationOptions),
            "authentication.oidc": ("oidc", OidcOptions),
            "authorization": ("authorization", AuthorizationOptions),
            "standby": ("standby", StandbyOptions)}
# Option of an owner or worker: the key of another section that it takes its value from, because both must agree.
SHARED = {"storage.cluster_name": "cluster_name",
          "storage.keep_alive_interval_ms": "network.keep_alive_interval_ms",
          "storage.transactions": "transactions.enabled", "network.transactions": "transactions.enabled",
          "storage.max_active_transactions": "transactions.max_active"}


class Key(NamedTuple):
    type: Any
    default: Any


def _keys() -> dict[str, Key]:
    sections = {"origins", "pulsar_texts", *(name for name, _ in SECTIONS.values())}
    keys = {f.name: Key(f.type, f.default) for f in fields(Config) if f.name not in sections}
    for section, (_, options) in SECTIONS.items():
        keys |= {f"{section}.{f.name}": Key(f.type, f.default) for f in fields(options)}
    return {name: key for name, key in keys.items() if name not in SHARED}


KEYS = _keys()

# Keys of files that the service manager may hand over: "credential:NAME".
FILES = {"tls.certificate", "tls.key", "tls.trusted",
         "authentication.secret_keys", "authentication.public_keys", "authentication.users",
         "authentication.oidc.trusted"}
CREDENTIAL = "credential:"
CREDENTIALS = "/run/credentials/geminga.service"      # systemd's folder, for commands that systemd did not start


def load(config_path: Path | str | None, environ: Mapping[str, str],
         overrides: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """Load the configuration from all sources, and return it with notes for the log.

    overrides: values of the command line by key ("http_port", "network.port"), None for options that are not given.
    Raises ConfigError, which names the first key that is wrong.
    """
    given, texts, notes = _gather(config_path, environ, overrides)
    values = {name: key.default for name, key in KEYS.items()}
    values |= {name: value_of(name, setting) for name, setting in given.items()}
    for name in FILES & given.keys():
        folder = environ.get("CREDENTIALS_DIRECTORY", CREDENTIALS)
        values[name] = _located(name, values[name], given[name].origin, folder)
    notes += _relate(values, given)
    values["http_bind"] = values["http_bind"] or values["network.bind"]
    for name in ("workers", "owners"):
        values[name] = values[name] or host.core_count()
    sources = {name: setting.origin for name, setting in given.items()}
    return replace(_compose(values), origins=sources, pulsar_texts=texts), notes


def _gather(config_path: Path | str | None, environ: Mapping[str, str],
            overrides: Mapping[str, Any]) -> tuple[Settings, dict[str, str], list[str]]:
    """Collect the settings of all sources: for each key the one of the strongest source.

    Return them with the texts of Pulsar's settings that are in force, and notes for the log.
    """
    document, properties = _read(config_path) if config_path is not None else ({}, {})
    # Pulsar's settings are merged before they are translated, because two of them may make one key.
    properties = properties | from_environment(environ)
    translated, notes = translate(properties)
    variables, more = _variables(environ)
    line = {name: Setting(value, "command line") for name, value in overrides.items() if value is not None}
    given = document | translated | variables | line
    for name, setting in given.items():
        if name not in KEYS:
            raise ConfigError(f"{setting.origin}: {name} is not a key{_hint(name)}")
    texts = texts_in_force(properties, given, variables.keys() | line.keys())
    return given, {name: text for name, text in texts.items() if not _is_secret(name)}, notes + more


def _is_secret(name: str) -> bool:
    """Whether a value of one of Pulsar's settings is a secret, which only the options of its key keep."""
    return name in TRANSLATED and "Secret" in str(KEYS[TRANSLATED[name][0]].type)


def _hint(name: str) -> str:
    """Return the text that follows "is not a key": the key or section that was probably meant, "" if none is alike."""
    section, _, last = name.rpartition(".")
    if name in SECTIONS:
        return f": it is a section, begun by a line [{name}]"
    if last in TRANSLATED:
        return f": it is Pulsar's name of {TRANSLATED[last][0]}"
    sections = likest(section or name, SECTIONS, cutoff=0.75)
    if section not in SECTIONS and sections:
        whole = f"{sections[0]}.{last}"
        return f", did you mean {whole}?" if whole in KEYS else f", did you mean section [{sections[0]}]?"
    same = [key for key in KEYS if key.rpartition(".")[2] == last]
    return f", did you mean {same[0]}?" if len(same) == 1 else nearest(name, KEYS)


def _read(config_path: Path | str) -> tuple[Settings, Settings]:
    """Read a configuration file.  Returns (settings of TOML, settings of properties), one of them empty."""
    path = Path(config_path)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(usable_paths.unreadable(path, error)) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    if path.suffix in (".conf", ".properties"):
        return {}, parse(text, str(path))
    try:
        return _flat(tomllib.loads(text), "", text, path), {}
    except tomllib.TOMLDecodeError as error:
        if path.suffix == ".toml":
            last = f"at line {len(text.splitlines())}, the last"
            raise ConfigError(f"{path}: is not TOML: {str(error).replace('at end of document', last)}") from None
        return {}, parse(text, str(path))


def _flat(table: Mapping[str, Any], section: str, text: str, path: Path) -> Settings:
    settings: Settings = {}
    for name, value in table.items():
        name = section + name
        if isinstance(value, dict) and (value or name in SECTIONS):
            settings |= _flat(value, name + ".", text, path)
        else:
            settings[name] = Setting(value, f"{path}{_line_of(name, text)}")
    return settings


def _line_of(name: str, text: str) -> str:
    """Return ":7" if the key stands on line 7 of a TOML file; "" if it is written in one of TOML's rarer ways."""
    wanted, _, key = name.rpartition(".")
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]*?)\s*\]", line):
            section = header[1]
        elif section == wanted and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return f":{number}"
    return ""


def _variables(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    names = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in KEYS}
    sections = tuple(f"{ENVIRONMENT_PREFIX}{section.upper()}_" for section in SECTIONS)
    given, strange = {}, []
    for variable in sorted(environ):
        if variable in names:
            given[names[variable]] = Setting(environ[variable], variable)
        elif variable.startswith(ENVIRONMENT_PREFIX):
            # Not all are errors: if a service is called geminga, Kubernetes sets GEMINGA_SERVICE_HOST and GEMINGA_PORT
            # in every pod.
            hint = nearest(variable, names, cutoff=0.87)
            if hint or variable.startswith(sections):
                raise ConfigError(f"{variable}: there is no such setting{hint or nearest(variable, names)}")
            strange.append(variable)
    return given, [f"variables without effect: {', '.join(strange)}"] if strange else []


def value_of(name: str, setting: Setting) -> Any:
    """Convert a setting to its key's type, and check the key's range.  Raises ConfigError."""
    try:
        read = reader(name) if KEYS[name].type is int else None
        value = (read or READERS[KEYS[name].type])(setting.value)
    except ValueError as error:
        shown = "what it is" if "Secret" in str(KEYS[name].type) else repr(setting.value)
        raise ConfigError(f"{setting.origin}: {name} must be {error}, not {shown}") from None
    if name in RANGES and not RANGES[name][0] <= value <= RANGES[name][1]:
        raise ConfigError(f"{setting.origin}: {name} must be {RANGES[name][0]} to {RANGES[name][1]}, not {value}")
    if name in FORMS:
        for text in value if isinstance(value, tuple) else (value,):
            if not re.fullmatch(FORMS[name][0], text):
                raise ConfigError(f"{setting.origin}: {name} must be {FORMS[name][1]}, not {text!r}")
    return value


def _located(name: str, value: Any, origin: str, folder: str) -> Any:
    """Replace credential:NAME by the path at which the service manager puts that credential."""
    if isinstance(value, tuple):
        return tuple(_located(name, one, origin, folder) for one in value)
    if not value.startswith(CREDENTIAL):
        return value
    if not re.fullmatch(r"(?!\.)[-.\w]+", credential := value.removeprefix(CREDENTIAL)):
        raise ConfigError(f"{origin}: {name} must be {CREDENTIAL}NAME, with a name that the unit's LoadCredential= has")
    return type(value)(Path(folder) / credential)


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()):
        return int(value)
    raise ValueError("a whole number")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    raise ValueError("text")


def _path(value: Any) -> Path:
    if isinstance(value, (str, Path)) and str(value).strip():
        return Path(value)
    raise ValueError("a path")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError("a list of texts")


def _secrets(value: Any) -> tuple[Secret, ...]:
    """Split a list of keys at its commas, but not at the comma inside a data:;base64,... URL."""
    return tuple(map(Secret, _texts(re.split(r"(?<!base64),", value) if isinstance(value, str) else value)))


# Type of a key: the function that reads its value, and raises ValueError with the text of what it must be.
READERS: dict[Any, Callable[[Any], Any]] = {
    int: _integer, bool: _boolean, str: _text, Path: _path, tuple[str, ...]: _texts,
    Secret: lambda value: Secret(_text(value)), tuple[Secret, ...]: _secrets}


def _relate(values: dict[str, Any], given: Mapping[str, Setting]) -> list[str]:
    """Refuse values that exclude each other, and raise defaults that are too small for the values of other keys.

    Return notes for the log.  Raises ConfigError.
    """
    notes = []
    message_size = values["network.max_message_size"]
    reason = f"for network.max_message_size = {message_size}"
    least_values = {
        "storage.roll_over_bytes": message_size + FRAME_OVERHEAD + 1,    # any one entry fits a ledger
        # A pass is one record: its messages, one frame more, and tables as large as the messages if these are small.
        "storage.journal_segment_bytes": 2 * message_size + 4 * values["storage.pass_bytes_max"] + MIB,
    }
    for name, least in least_values.items():
        if values[name] >= least:
            continue
        if name in given:
            raise ConfigError(f"{given[name].origin}: {name} must be at least {least} {reason}, not {values[name]}")
        values[name] = -(-least // MIB) * MIB
        notes.append(f"{name} is {values[name]}, more than by default, {reason}")
    below, above = "storage.disk_refuse_below_bytes", "storage.disk_accept_above_bytes"
    if values[above] < values[below]:
        if above in given:
            raise ConfigError(f"{given[above].origin}: {above} must be at least {values[below]}, as {below} is, "
                              f"not {values[above]}")
        values[above] = values[below] + values[below] // 2
        notes.append(f"{above} is {values[above]}, more than by default, for {below} = {values[below]}")
    _refuse_scaling(values, given)
    if (values["storage.retention_s"] == 0) != (values["storage.retention_bytes"] == 0):
        notes.append("nothing is retained while one of storage.retention_s and storage.retention_bytes is 0; "
                     "-1 is no bound")
    if not values["tls.versions"]:
        raise ConfigError(f"{given['tls.versions'].origin}: tls.versions must be one of TLSv1.2 and TLSv1.3, or both")
    _refuse_clashes(values, given)
    _refuse_halves(values, given)
    return notes


def _refuse_scaling(values: Mapping[str, Any], given: Mapping[str, Setting]) -> None:
    """Raise ConfigError if scalable topics would merge what they have just split."""
    bounds = [("storage.scale_segments_min", "storage.scale_segments_max", 0)] + [
        (f"storage.scale_merge_{rate}", f"storage.scale_split_{rate}", 1) for rate in SCALING_RATES]
    for low, high, apart in bounds:
        if values[high] < values[low] + apart:
            name, other, word = (high, low, "least") if high in given else (low, high, "most")
            value = values[low] + apart if name == high else values[high] - apart
            raise ConfigError(f"{given[name].origin}: {name} must be at {word} {value}, as {other} is {values[other]}, "
                              f"not {values[name]}")


def _refuse_clashes(values: Mapping[str, Any], given: Mapping[str, Setting]) -> None:
    ports = ["http_port", "network.port", *(["tls.http_port", "tls.port"] if values["tls.certificate"] else [])]
    for one, other in itertools.combinations(ports, 2):
        shares = "http_port" not in one or "http_port" in other or values["http_bind"] in ("", values["network.bind"])
        if values[one] > 0 and values[one] == values[other] and shares:
            setting = given.get(one) or given[other]
            raise ConfigError(f"{setting.origin}: {one} and {other} must differ, both are {values[one]}")
    names = [listener.partition("://")[0] for listener in values["network.advertised_listeners"]]
    if len(set(names)) < len(names):
        origin = given["network.advertised_listeners"].origin
        raise ConfigError(f"{origin}: network.advertised_listeners must have one address for each name and scheme")


def _refuse_halves(values: Mapping[str, Any], given: Mapping[str, Setting]) -> None:
    """Refuse keys of TLS and authentication that are set without the keys on which they depend.

    An incomplete set-up would let everybody in, or nobody.
    """
    needed = [(key, needs) for key, needs in (
        ("tls.certificate", "tls.key"), ("tls.key", "tls.certificate"), ("tls.trusted", "tls.certificate"),
        ("authentication.audience", "authentication.audience_claim"),
        ("authentication.audience_claim", "authentication.audience"),
        ("authentication.oidc.issuers", "authentication.methods"),
        ("authentication.oidc.issuers", "authentication.oidc.audiences"),
        ("authentication.oidc.audiences", "authentication.oidc.issuers"),
        ("authentication.oidc.console_client_id", "authentication.oidc.issuers"),
        ("authorization.enabled", "authentication.methods")) if values[key]]
    needed += [(key, "tls.certificate") for key in ("tls.port", "tls.http_port") if key in given and values[key] >= 0]
    for key, other in (("network.port", "tls.port"), ("http_port", "tls.http_port")):
        if values[key] < 0 and not (values["tls.certificate"] and values[other] >= 0):
            raise ConfigError(f"{given[key].origin}: {key} is -1, which needs tls.certificate and {other}: "
                              "nobody could connect")
    if values["tls.client_certificates"] == "required":
        needed.append(("tls.client_certificates", "tls.trusted"))
    by_method = {"token": ("authentication.secret_keys", "authentication.public_keys", "authentication.oidc.issuers"),
                 "basic": ("authentication.users",), "tls": ("tls.trusted",)}
    needed += [("authentication.methods", " or ".join(by_method[method]))
               for method in values["authentication.methods"]]
    for key, needs in needed:
        if not any(values[one] for one in needs.split(" or ")):
            raise ConfigError(f"{given[key].origin}: {key} needs {needs}")
    issuers = values["authentication.oidc.issuers"]
    if issuers and "token" not in values["authentication.methods"]:
        raise ConfigError(f"{given['authentication.oidc.issuers'].origin}: authentication.oidc.issuers needs token in "
                          "authentication.methods")
    for url in issuers:
        if values["authentication.oidc.require_https"] and not url.startswith("https://"):
            raise ConfigError(f"{given['authentication.oidc.issuers'].origin}: authentication.oidc.issuers must begin "
                              f"with https://, as authentication.oidc.require_https is true, not {url!r}")


def _compose(values: Mapping[str, Any]) -> Config:
    whole = {**values, **{name: values[source] for name, source in SHARED.items()}}
    parts = {
        name: options(**{f.name: whole[f"{section}.{f.name}"] for f in fields(options)})
        for section, (name, options) in SECTIONS.items()
    }
    return Config(**{name: value for name, value in values.items() if "." not in name}, **parts)


def value(config: Config, key: str) -> Any:
    """Return a configuration's value of a key such as "storage.retention_s"."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, SECTIONS[section][0]) if section else config, name)


def shown(setting: Any) -> str:
    """Return a configuration value as TOML text; stars for a secret."""
    if isinstance(setting, bool):
        return str(setting).lower()
    if isinstance(setting, tuple | list):
        return f"[{', '.join(map(shown, setting))}]"
    if isinstance(setting, int):
        return str(setting)
    return f'"{"***" if isinstance(setting, Secret) and setting else setting}"'
