# Sourced by the scripts beside it: makes .venv as pinned, once, and again when pins change.
# Sets $root and $python. Progress goes to stderr.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python="$root/.venv/bin/python"
unset PYTHONDONTWRITEBYTECODE  # compiled byte-code halves the time of importing TensorFlow

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
            2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "launch needs Python 3.11 to 3.13. Install one, or name it: PYTHON=/path/to/python3" >&2
    return 1
}

make_environment() {
    local stamp wanted base
    stamp="$root/.venv/.made-for"
    wanted=$(cksum "$root/constraints.txt" "$root/pyproject.toml" "$root/scripts/environment.sh" | cut -d' ' -f1,2)
    [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    base=$(find_python) || return 1
    echo "setting up .venv (once; about two minutes)" >&2
    [ -x "$python" ] || "$base" -m venv "$root/.venv" || return 1
    "$python" -m pip install -qq --disable-pip-version-check --no-compile \
        --constraint "$root/constraints.txt" --editable "$root[dev]" >&2 || return 1
    echo "compiling byte-code" >&2  # on all cores; pip would do it on one
    "$python" -m compileall -q -j 0 "$root/.venv/lib" >/dev/null 2>&1 || true
    printf '%s\n' "$wanted" >"$stamp"
}
