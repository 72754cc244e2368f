#!/bin/sh
# Installs the broker on this host (Debian 12 or 13), as root, in one command; `sh systemd/install.sh --help`.
set -eu

usage() {
    cat <<'END'
usage: sh install.sh [--without-spark] [PACKAGE.deb ...]      install, or upgrade in place, and start
       sh install.sh --remove [--purge]                       remove; keeps data and configuration, unless --purge

In a checkout, packages are built from it.  Elsewhere, named packages or those beside this file are installed.

  --without-spark   leaves out geminga-nightly: Spark and a Java runtime for large nights, half a gigabyte.
                    Without them every night is computed in one process
  --remove          as `apt-get remove geminga`: stops and removes the programs
  --purge           as `apt-get purge geminga`: also deletes /etc/geminga/geminga.toml and /var/lib/geminga with all
                    messages

Exit status: 0 done; 1 failed, and a line gives the reason; 2 wrong usage.
END
}

# Paths of packages may contain blanks, so only a newline separates them.
IFS='
'
here=$(cd "$(dirname "$0")" && pwd)
began=$(date +%s)
READY_SECONDS=120
export DEBIAN_FRONTEND=noninteractive

say() { echo "install: $(($(date +%s) - began)) s: $1"; }
fail() { echo "install: $1" >&2; exit 1; }
wrong() { echo "install: $1; --help shows how" >&2; exit 2; }

main() {
    action=install purge='' spark=yes packages=''
    for argument in "$@"; do
        case "$argument" in
        --help|-h) usage; exit 0 ;;
        --remove) action=remove ;;
        --purge) purge=yes ;;
        --without-spark) spark='' ;;
        -*) wrong "$argument is no option" ;;
        *.deb) [ -f "$argument" ] || wrong "$argument is no file"; packages=$packages$IFS$(realpath "$argument") ;;
        *) wrong "$argument is no package" ;;
        esac
    done
    [ -z "$purge" ] || [ $action = remove ] || wrong "--purge goes with --remove"
    [ "$(id -u)" = 0 ] || fail "must be run by root"
    $action
}

install() {
    # Until its release, Debian 14 has no VERSION_ID.
    release=$(. /etc/os-release && echo "${ID-} ${VERSION_ID-$(case ${VERSION_CODENAME-} in forky) echo 14 ;; esac)}")
    case $release in 'debian 12'|'debian 13'|'debian 14') ;; *) fail "needs Debian 12 or 13, and this is $release" ;; esac
    dpkg --configure -a >/dev/null 2>&1 || true      # completes an installation that a power cut interrupted
    say "fetching the lists of Debian's packages"
    apt-get -qq update >/dev/null 2>&1 || say "lists of packages could not be fetched; going on with the old ones"
    [ -n "$packages" ] || find_packages
    say "installing$(for package in $packages; do printf ' %s' "$(basename "$package")"; done)"
    apt_get install --no-install-recommends --allow-downgrades $packages
    wait_until_ready
}

# Builds the packages of a checkout, or finds the newest packages for this release beside this file.
find_packages() {
    if [ -f "$here/../pyproject.toml" ]; then
        apt_get install --no-install-recommends python3 python3-pip
        say "building the package${spark:+, and that of Spark}"
        packages=$(/usr/bin/python3 "$here/package.py" --out "$here/../dist" ${spark:+--spark}) ||
            fail "the package could not be built"
        return
    fi
    packages=$(newest geminga)
    [ -n "$packages" ] || fail "no package was named, none lies beside this file, and this is not a checkout"
    [ -z "$spark" ] || spark=$(newest geminga-nightly)
    [ -z "$spark" ] || packages=$packages$IFS$spark
}

newest() {
    ls -t "$here/$1"_*~deb"${release#debian }"_*.deb 2>/dev/null | head -n 1
}

# Shows the output of apt-get only when it failed.
apt_get() {
    output=$(apt-get --yes -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" 2>&1) && return
    printf '%s\n' "$output" >&2
    fail "apt-get $1 failed"
}

wait_until_ready() {
    if ! [ -d /run/systemd/system ]; then
        say "installed; this host does not run systemd.  Start the broker yourself:
  runuser -u geminga -- geminga serve --config /etc/geminga/geminga.toml"
        return
    elif ! systemctl is-enabled --quiet geminga.service; then
        say "installed; geminga.service is disabled here.  To start it: systemctl enable --now geminga"
        return
    fi
    status=0
    timeout $READY_SECONDS systemctl start geminga.service || status=$?
    if [ $status != 0 ]; then
        journalctl --unit geminga.service --lines 10 --no-pager --output cat >&2
        [ $status != 124 ] || fail "installed, not ready within $READY_SECONDS s: see systemctl status geminga"
        fail "installed, and geminga.service did not start: see journalctl -u geminga"
    fi
    say "ready.  Publish a first message, and read it:
  geminga produce my-topic 'Hello'
  geminga consume my-topic
Short programs in Python, Java, Go and Node: /usr/share/doc/geminga/docs/examples"
}

remove() {
    nightly=geminga-nightly
    dpkg-query -W geminga-nightly >/dev/null 2>&1 || nightly=''
    dpkg-query -W geminga >/dev/null 2>&1 || fail "geminga is not installed"
    if [ -n "$purge" ]; then
        apt_get purge geminga $nightly
        say "removed, with configuration and data"
    else
        apt_get remove geminga $nightly
        say "removed; /etc/geminga and /var/lib/geminga are kept"
    fi
}

main "$@"
