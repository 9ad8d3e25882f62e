# Sourced by scripts/run and scripts/test: creates .venv once and installs the pinned dependencies; silent if nothing has changed.
# sdbench_setup EXTRAS     EXTRAS: "" or a comma-separated list of pyproject's extras
#
# PYTHON            the interpreter to build .venv from (default: the newest python3.1x on PATH, at least 3.11)
# SDBENCH_PIP_ARGS  more arguments for pip, for example an index with another build of torch
set -euo pipefail
SDBENCH_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SDBENCH_VENV=$SDBENCH_ROOT/.venv

sdbench_fail() { printf 'sdbench: %s\n' "$*" >&2; exit 1; }

sdbench_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3.14 python3.13 python3.12 python3.11 python3 python; fi
  for candidate in "$@"; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$candidate"; return; }
  done
  sdbench_fail "Python 3.11 or newer is missing (looked for: ${PYTHON:-python3.11 … python3.14, python3}); install it or name one with PYTHON=/path/to/python"
}

sdbench_setup() {
  local extras=$1 stamp python log
  stamp=$SDBENCH_VENV/.ready-${extras:-base}-$({ cat "$SDBENCH_ROOT/pyproject.toml" "$SDBENCH_ROOT/constraints.txt"; printf %s "$SDBENCH_ROOT"; } | cksum | tr ' ' '-')
  log=$SDBENCH_VENV/setup.log
  [ -e "$stamp" ] && return
  if ! "$SDBENCH_VENV/bin/python" -c '' >/dev/null 2>&1; then
    python=$(sdbench_python) || exit 1
    printf 'sdbench: making .venv with %s\n' "$("$python" --version)" >&2
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
      sdbench_fail "$python has no venv or ensurepip module; on Debian and Ubuntu: apt-get install python3-venv"
    "$python" -m venv "$SDBENCH_VENV" || sdbench_fail "could not make $SDBENCH_VENV"
  elif ! "$SDBENCH_VENV/bin/python" -c 'import pip' >/dev/null 2>&1; then  # its creation was interrupted, or it has no pip
    "$SDBENCH_VENV/bin/python" -m ensurepip >/dev/null 2>&1 ||
      sdbench_fail "$SDBENCH_VENV has no pip: install it there, or remove the folder"
  fi
  printf 'sdbench: installing the pinned dependencies (some minutes, once; log: .venv/setup.log)\n' >&2
  # shellcheck disable=SC2086 - SDBENCH_PIP_ARGS is a list of words
  if ! "$SDBENCH_VENV/bin/python" -m pip install --disable-pip-version-check --no-input ${SDBENCH_PIP_ARGS:-} \
      -c "$SDBENCH_ROOT/constraints.txt" -e "$SDBENCH_ROOT${extras:+[$extras]}" >"$log" 2>&1; then
    { grep -E '^ERROR|error:' "$log" || tail -n 5 "$log"; } | tail -n 5 >&2
    sdbench_fail "the installation failed; its log is $log"
  fi
  rm -f "$SDBENCH_VENV"/.ready-"${extras:-base}"-*
  touch "$stamp"
}
