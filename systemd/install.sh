#!/bin/sh
# Installs the broker on this host (Debian 12 or 13), as root, in one command; `sh systemd/install.sh --help`.
set -eu

usage() {
    cat <<'END'
usage: sh install.sh [--spark] [PACKAGE.deb ...]      install, or upgrade in place, and start
       sh install.sh --remove [--purge]               remove; keeps data and configuration, unless --purge

In a checkout the packages are built from it; elsewhere those that lie beside this file are taken, or those that are named.

  --spark    geminga-nightly too: Spark and a Java runtime for the nightly job, half a gigabyte.  Without them it works in one process
  --remove   as `apt-get remove geminga`: stops and removes the programs
  --purge    as `apt-get purge geminga`: /etc/geminga/geminga.toml and /var/lib/geminga, with every message in it, too

Exit status: 0 done; 1 it could not be done, a line says why; 2 wrong usage.
END
}

here=$(cd "$(dirname "$0")" && pwd)
began=$(date +%s)
export DEBIAN_FRONTEND=noninteractive

say() { echo "install: $(($(date +%s) - began)) s: $*"; }
fail() { echo "install: $*" >&2; exit 1; }
wrong() { echo "install: $*; --help shows how" >&2; exit 2; }

main() {
    action=install purge='' spark='' packages=''
    for argument in "$@"; do
        case "$argument" in
        --help|-h) usage; exit 0 ;;
        --remove) action=remove ;;
        --purge) purge=yes ;;
        --spark) spark=yes ;;
        -*) wrong "$argument is no option" ;;
        *.deb) [ -f "$argument" ] || wrong "$argument is no file"; packages="$packages $(realpath "$argument")" ;;
        *) wrong "$argument is no package" ;;
        esac
    done
    [ -z "$purge" ] || [ $action = remove ] || wrong "--purge goes with --remove"
    [ "$(id -u)" = 0 ] || fail "must be run by root"
    $action
}

install() {
    release=$(. /etc/os-release && echo "${ID-} ${VERSION_ID-}")
    case $release in 'debian 12'|'debian 13') ;; *) fail "needs Debian 12 or 13, and this is $release" ;; esac
    if [ -n "$packages" ]; then
        apt_get update
    elif [ -f "$here/../pyproject.toml" ]; then
        build
    else
        apt_get update
        packages=$(newest geminga)
        [ -n "$packages" ] || fail "no package was named, none lies beside this file, and this is no checkout"
        [ -z "$spark" ] || packages="$packages $(newest geminga-nightly)"
    fi
    say "installing$(for package in $packages; do printf ' %s' "$(basename "$package")"; done)"
    # shellcheck disable=SC2086      # several
    apt_get install --no-install-recommends --allow-downgrades $packages
    wait_until_ready
}

build() {
    is_installed geminga-nightly && spark=yes
    say "fetching what Debian has"
    apt_get update
    apt_get install --no-install-recommends python3 python3-pip
    say "building the package"
    packages=$(/usr/bin/python3 "$here/package.py" --out "$here/../dist" ${spark:+--spark}) || fail "the package could not be built"
}

# The newest package of that name beside this file, for this release.
newest() {
    # shellcheck disable=SC2012      # names of packages have no blanks
    ls -t "$here/$1"_*~deb"${release#debian }"_*.deb 2>/dev/null | head -n 1
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Its output is shown when it failed.
apt_get() {
    output=$(apt-get --yes -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" 2>&1) && return
    printf '%s\n' "$output" >&2
    fail "apt-get $1 failed"
}

wait_until_ready() {
    [ -d /run/systemd/system ] || { say "installed; this host is not run by systemd: geminga serve --config /etc/geminga/geminga.toml"; return; }
    systemctl is-enabled --quiet geminga.service || { say "installed; geminga.service is switched off here: systemctl enable --now geminga"; return; }
    if ! systemctl start geminga.service; then
        journalctl --unit geminga.service --lines 20 --no-pager --output cat >&2
        fail "geminga.service did not start; journalctl -u geminga tells more"
    fi
    say "ready.  Publish a first message, and read it:
  geminga publish my-topic 'Hello'
  geminga read my-topic"
}

remove() {
    nightly=geminga-nightly
    dpkg-query -W geminga-nightly >/dev/null 2>&1 || nightly=''
    dpkg-query -W geminga >/dev/null 2>&1 || fail "geminga is not installed"
    if [ -n "$purge" ]; then
        # shellcheck disable=SC2086      # it may be none
        apt_get purge geminga $nightly
        say "removed, with configuration and data"
    else
        # shellcheck disable=SC2086
        apt_get remove geminga $nightly
        say "removed; /etc/geminga and /var/lib/geminga are kept"
    fi
}

main "$@"
