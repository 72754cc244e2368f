#!/bin/sh
# `pulsar-admin namespaces set-retention -s 500K -t 30s` of Apache Pulsar 4.0.8 sets the retention to none, and says nothing.
#
# Sizes and times are given with units, down to bytes and seconds. The request has whole MiB and minutes, rounded down. So
# 500 KiB and 30 s become 0 and 0, with which a broker deletes messages as soon as they are acknowledged; 1500K becomes 1
# MiB, and 90s a minute. The exit status is 0. `topics set-retention` and `topicPolicies set-retention` do the same.
#
# Expected: an error, or at least what was asked for. Seen: 0 and 0. Exit status 0: it still rounds down.
set -eu
folder=$(mktemp -d)
trap 'kill "$server" 2> /dev/null || true; rm -rf "$folder"' EXIT
server=
cat > "$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client-tools</artifactId>
<version>4.0.8</version></dependency></dependencies></project>
POM
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/lib" -DincludeScope=runtime
cat > "$folder/server.py" <<'PROGRAM'
import http.server
import sys


class Noting(http.server.BaseHTTPRequestHandler):
    """Accepts every request, and writes its body down."""

    def do_POST(self):
        size = int(self.headers.get("Content-Length") or 0)
        with open(sys.argv[1] + "/requests", "a") as file:
            print(self.rfile.read(size).decode(), file=file)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Noting)
with open(sys.argv[1] + "/client.conf", "w") as file:
    print(f"webServiceUrl=http://127.0.0.1:{server.server_port}\nbrokerServiceUrl=pulsar://127.0.0.1:1", file=file)
open(sys.argv[1] + "/ready", "w").close()
server.serve_forever()
PROGRAM
python3 "$folder/server.py" "$folder" &
server=$!
while [ ! -e "$folder/ready" ]; do sleep 0.1; done
admin() {
    java -cp "$folder/lib/*" org.apache.pulsar.admin.cli.PulsarAdminTool "$folder/client.conf" "$@" > "$folder/said" 2>&1
    echo "pulsar-admin $*: exit status $?, seen $(tail -n 1 "$folder/requests")"
}
admin namespaces set-retention -s 500K -t 30s public/default
admin namespaces set-retention -s 1500K -t 90s public/default
admin topics set-retention -s 500K -t 30s public/default/orders
printf '%s\n' '{"retentionTimeInMinutes":0,"retentionSizeInMB":0}' '{"retentionTimeInMinutes":1,"retentionSizeInMB":1}' \
    '{"retentionTimeInMinutes":0,"retentionSizeInMB":0}' | cmp - "$folder/requests"
