# Sourced by the scripts beside it: makes .venv and installs this folder into it, once for every change of
# pyproject.toml. Usage: prepare NAME PIP-ARGUMENTS…; NAME tells one set of arguments from another.

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "spotbroker needs Python 3.11 or newer; set PYTHON to one, such as PYTHON=/usr/bin/python3.12" >&2
    return 1
}

make_venv() {
    python=$(find_python) || return 1
    "$python" -m venv .venv >/dev/null 2>&1 && return 0
    rm -rf .venv
    if "$python" -m virtualenv -q .venv 2>/dev/null; then return 0; fi
    rm -rf .venv
    if uv venv -q --seed --python "$python" .venv 2>/dev/null; then return 0; fi
    rm -rf .venv
    echo "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
    return 1
}

prepare() {
    name=$1
    shift
    stamp=".venv/.installed-$name"
    now=$(pwd; cksum pyproject.toml; echo "$*")
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]; then return 0; fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        make_venv || return 1
    fi
    echo "Installing ${what:-spotbroker} into .venv; this takes a minute or two the first time" >&2
    # Dependency groups need pip 25.1; `pip install --group` is how the tests' packages come.
    .venv/bin/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1' || return 1
    # What is imported is compiled then; compiling all of it takes as long as fetching it.
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-compile "$@" || return 1
    echo "$now" >"$stamp"
}
