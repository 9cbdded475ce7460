#!/usr/bin/env bash
# On every machine of a cluster: one exact Python, and in it the launcher with its pinned packages,
# in ~/launch-env. Ray demands the same Python and Ray everywhere, down to the last digit.
#
#   install.sh [--keep] [EXTRA]
#
# EXTRA is the cloud (aws, gcp, azure) whose machines this one is to rent: for the head. --keep leaves
# alone a machine that has a `launch` already, as one of your own may.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
place="$HOME/launch-env"
version=3.11.9
unset PYTHONDONTWRITEBYTECODE  # compiled byte-code halves the time of importing TensorFlow

if [ "${1:-}" = --keep ]; then
    shift
    own=$(command -v launch || true)
    case "$own" in
    "" | "$place"/*) ;;
    *)
        echo "$own is there already, and is left as it is"
        exit 0
        ;;
    esac
fi

export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
[ -d "$place" ] || uv venv --python "$version" "$place"

install() {
    uv pip install --python "$place/bin/python" --compile-bytecode \
        --constraint "$root/constraints.txt" "$@"
}
install --reinstall-package train-launcher "$root[${1:-default}]"
if command -v nvidia-smi >/dev/null; then
    install "tensorflow[and-cuda]"
fi
grep -qs launch-env "$HOME/.bashrc" ||
    echo 'export PATH="$HOME/launch-env/bin:$PATH"' >>"$HOME/.bashrc"
