"""Keys of the configuration that a reload leaves as they are, with the reason."""
_LISTENERS = "listeners are opened before the processes that accept from them start"
NEEDS_RESTART = {
    "data_dir": "all files that are open lie in it",
    "workers": "listeners and shared memory of each are made at the start",
    "owners": "partitions and journals are distributed among them at the start",
    "network.bind": _LISTENERS, "network.port": _LISTENERS, "http_bind": _LISTENERS, "http_port": _LISTENERS,
    "http.web_processes": "processes and their shared memory are made at the start",
    "network.proxy_protocol": _LISTENERS, "tls.port": _LISTENERS, "tls.http_port": _LISTENERS,
}
TLS_SWITCH = "listeners with TLS are opened at the start"
