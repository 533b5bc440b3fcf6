#!/usr/bin/env bash
# The programs from the system's packages that the tests run beside Nilometer. Installs what is missing when it can
# (root on Debian or Ubuntu), and otherwise says what to install. Does nothing where all is there.
set -euo pipefail

missing=()
[ -e /usr/share/java/zookeeper.jar ] || missing+=(zookeeper)
command -v kcat >/dev/null || missing+=(kcat)
command -v ip >/dev/null || missing+=(iproute2)
command -v iptables >/dev/null || missing+=(iptables)
command -v strace >/dev/null || missing+=(strace)
command -v openssl >/dev/null || missing+=(openssl)
command -v prometheus >/dev/null || missing+=(prometheus)
command -v systemd-analyze >/dev/null || missing+=(systemd)  # only its programs: it does not become the init
command -v chromium >/dev/null || missing+=(chromium)
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
command -v mariadbd >/dev/null || missing+=(mariadb-server)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]} for the tests (once) ..."
  log=$(mktemp)
  if [ ! -e /usr/sbin/policy-rc.d ]; then  # the tests start the programs themselves: no service may start
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    rm -f "$log"
    exit 0
  fi
  echo "apt-get could not install ${missing[*]}; the end of its output:" >&2
  tail -n 15 "$log" >&2
  exit 1
fi
echo "The tests run these programs too; please install them: ${missing[*]}" >&2
exit 1
