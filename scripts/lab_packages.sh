#!/usr/bin/env bash
# Installs what the tests of `launch up` need on a bare machine: an ssh server and rsync. Does
# nothing where they are there, and where it may not: tests then skip and say why. On a machine
# with systemd an ssh server would start by itself, which is for its owner to decide.
set -euo pipefail

command -v sshd >/dev/null && command -v ssh >/dev/null && command -v rsync >/dev/null && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ] || exit 0
echo "installing openssh-server and rsync for tests of launch up" >&2
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # runlevel 1: the server isn't started
install=(apt-get install -qq -y --no-install-recommends openssh-client openssh-server rsync)
"${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; } ||
    echo "could not install them: those tests are skipped" >&2
