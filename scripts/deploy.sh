#!/usr/bin/env bash
# Build the images, push them to a registry, deploy them to a running platform, and wait until it is healthy.
#
#   scripts/deploy.sh kubernetes --registry example.org/geo --version 1.2.3 --overlay deploy/kubernetes/example
#   scripts/deploy.sh azure --registry myregistry --version 1.2.3 --resource-group geo
#
#   --registry NAME        where the images are pushed; for azure the name of the container registry
#   --version VERSION      tag of the images; every deployment has one of its own, `latest` is refused
#   --overlay FOLDER       kubernetes: the kustomize overlay
#   --namespace NAME       kubernetes: by default dagmaster
#   --resource-group NAME  azure: the resource group with the container apps of deploy/azure/main.bicep
#   --prefix NAME          azure: first part of the names of the container apps; by default dagmaster
#   --timeout SECONDS      how long to wait for each role; by default 600
#   --no-build             do not build: the images are in the registry already
#   --dry-run              print the commands that change something; run none
#
# The schema is migrated first, while the old version runs; then the roles are replaced one after the other, so that jobs
# continue. If a role does not become healthy the script ends with an error, and the old version of that role keeps running.
set -euo pipefail
cd "$(dirname "$0")/.."

ROLES=(orchestrator worker serving gateway)

fail() { printf 'deploy: %s\n' "$*" >&2; exit 1; }
say() { printf 'deploy: %s\n' "$*"; }
usage() { sed -n '2,18p' "$0" | sed 's/^# \{0,1\}//'; exit "${1:-2}"; }

run() {
  if [ -n "$dry" ]; then printf '+'; printf ' %q' "$@"; printf '\n'; else "$@"; fi
}

target=${1:-}
case $target in
  kubernetes|azure) shift ;;
  -h|--help) usage 0 ;;
  *) usage ;;
esac
registry='' version='' overlay='' namespace=dagmaster group='' prefix=dagmaster timeout=600 build=yes dry=''
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build='' ; shift ;;
    --dry-run) dry=yes ; shift ;;
    --registry|--version|--overlay|--namespace|--resource-group|--prefix|--timeout)
      [ -n "${2:-}" ] || fail "$1 needs a value"
      case $1 in
        --registry) registry=$2 ;;
        --version) version=$2 ;;
        --overlay) overlay=$2 ;;
        --namespace) namespace=$2 ;;
        --resource-group) group=$2 ;;
        --prefix) prefix=$2 ;;
        --timeout) timeout=$2 ;;
      esac
      shift 2 ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done
[ -n "$registry" ] || fail "--registry is required"
[ -n "$version" ] || fail "--version is required"
[ "$version" != latest ] || fail "--version latest is not allowed; use a version or a commit id"
[[ $version =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ ]] || fail "--version $version cannot be a tag"
[[ $timeout =~ ^[1-9][0-9]*$ ]] || fail "--timeout is a number of seconds"

need() { [ -n "$dry" ] || command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed"; }

# Kubernetes

push() {  # with the engine that has built the images
  local engine=${ENGINE:-} candidate role
  for candidate in buildah podman docker; do
    [ -n "$engine" ] || ! command -v "$candidate" >/dev/null 2>&1 || engine=$candidate
  done
  [ -n "$engine" ] || fail "buildah, podman or docker is required"
  for role in "${ROLES[@]}"; do run "$engine" push "$registry/dagmaster-$role:$version"; done
}

manifests() {  # the overlay, with the images of this deployment
  local folder role text
  text=$(kubectl kustomize "$overlay") || fail "the overlay $overlay cannot be built"
  folder=$(mktemp -d "$(dirname "$overlay")/.deploy.XXXXXX")
  {
    echo "resources: [../$(basename "$overlay")]"
    echo "images:"
    for role in "${ROLES[@]}"; do
      echo "  - {name: $(image_in "$text" "$role"), newName: $registry/dagmaster-$role, newTag: \"$version\"}"
    done
  } > "$folder/kustomization.yaml"
  kubectl kustomize "$folder" || { rm -rf "$folder"; fail "the overlay $overlay cannot be built"; }
  rm -rf "$folder"
}

image_in() {  # the built overlay, a role: the name that the overlay has given to the image of the role
  sed -n "s/^ *-\{0,1\} *image: \(.*dagmaster-$2\)\(:.*\)\{0,1\}$/\1/p" <<< "$1" | head -1
}

to_kubernetes() {
  need kubectl
  [ -f "$overlay/kustomization.yaml" ] || fail "--overlay is required: a folder with kustomization.yaml, like deploy/kubernetes/example"
  if [ -n "$build" ]; then
    run env REGISTRY="$registry" VERSION="$version" scripts/images
    push
  fi
  local file role
  file=$(mktemp)
  # shellcheck disable=SC2064  # expand the name now
  trap "rm -f '$file'" EXIT
  manifests > "$file"
  if grep -nE '^ *-? *image: .*(:latest|/[^:@]*)$' "$file" >&2; then fail "images without a version, see above"; fi
  say "migrating the schema"
  run kubectl --namespace "$namespace" delete job schema --ignore-not-found
  run kubectl apply --filename "$file" --selector dagmaster/first=true
  run kubectl --namespace "$namespace" wait --for=condition=complete "--timeout=${timeout}s" job/schema \
    || fail "the schema was not migrated, nothing else was changed: kubectl --namespace $namespace logs job/schema --all-containers"
  say "setting the images to version $version"
  run kubectl apply --filename "$file"
  for role in orchestrator worker-light worker-raster serving gateway; do
    run kubectl --namespace "$namespace" rollout status "deployment/$role" "--timeout=${timeout}s" \
      || fail "$role is not healthy; its old pods still run. Go back: kubectl --namespace $namespace rollout undo deployment/$role"
  done
}

# Azure Container Apps

to_azure() {
  need az
  [ -n "$group" ] || fail "--resource-group is required"
  local server role file app image
  server=$registry.azurecr.io
  if [ -n "$build" ]; then
    [ -n "${BASE:-}" ] || fail "set BASE to an image with Python 3.11 by digest, which the registry can pull: NAME@sha256:…"
    run env PREPARE_ONLY=yes REGISTRY="$server" VERSION="$version" BASE="$BASE" scripts/images
    for role in "${ROLES[@]}"; do
      file=Dockerfile; [ "$role" = orchestrator ] || file=Dockerfile.$role
      run az acr build --registry "$registry" --image "dagmaster-$role:$version" --platform linux/amd64 \
        --build-arg "BASE=$BASE" --build-arg "VERSION=$version" --file "$file" build/images
    done
  fi
  say "migrating the schema"
  run az containerapp job update --resource-group "$group" --name "$prefix-schema" --image "$server/dagmaster-orchestrator:$version" --output none
  if [ -n "$dry" ]; then run az containerapp job start --resource-group "$group" --name "$prefix-schema"; else azure_job; fi
  for app in orchestrator worker-light worker-raster serving gateway; do
    image=$server/dagmaster-${app%%-*}:$version
    say "setting $prefix-$app to $image"
    # A new suffix creates a new revision, which restarts the app even if the image has the same name.
    run az containerapp update --resource-group "$group" --name "$prefix-$app" --image "$image" \
      --revision-suffix "v$(date -u +%m%d%H%M%S)" --output none
    [ -n "$dry" ] || azure_healthy "$prefix-$app"
  done
}

azure_job() {
  local execution status end=$((SECONDS + timeout))
  execution=$(az containerapp job start --resource-group "$group" --name "$prefix-schema" --query name --output tsv)
  while [ "$SECONDS" -lt "$end" ]; do
    status=$(az containerapp job execution show --resource-group "$group" --name "$prefix-schema" \
      --job-execution-name "$execution" --query properties.status --output tsv)
    case $status in
      Succeeded) return ;;
      Failed|Stopped|Degraded) fail "the schema was not migrated ($status), nothing else was changed: see the logs of $execution" ;;
    esac
    sleep 5
  done
  fail "the schema was not migrated within $timeout s: see the logs of $execution"
}

azure_healthy() {  # the app
  local state end=$((SECONDS + timeout))
  while [ "$SECONDS" -lt "$end" ]; do
    state=$(az containerapp revision list --resource-group "$group" --name "$1" \
      --query "sort_by([?properties.active], &properties.createdTime)[-1].properties.[healthState, runningState]" --output tsv | tr '\n\t' '  ')
    case $state in
      *Healthy*Running*) say "$1 is healthy"; return ;;
      *Failed*) fail "$1 has failed; the old revision still has the traffic: az containerapp revision list -g $group -n $1 --output table" ;;
    esac
    sleep 5
  done
  fail "$1 is not healthy after $timeout s ($state)"
}

"to_$target"
say "done"
