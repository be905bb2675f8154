#!/usr/bin/env bash
# Runs the commands of docs/ in a lab, in a user's order: requirements, install, upgrade, uninstall. Of the fenced blocks,
#   ```sh       runs in the root of the repository, with kubectl and $OVSDN,
#   ```sh node  runs on a node,
#   ```sh skip  does not run: it needs a registry, or a component that the lab lacks.
# A block that fails fails the run. Needs root and what `make build` makes.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${OVSDN_DOCS_LAB:-docs}
pages=(requirements install upgrade uninstall)
lab=(bin/ovsdn-lab --name "$name")
work=$(mktemp -d)
trap '"${lab[@]}" down >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

# The user's tools: kubectl, and the folder with the settings of this cluster. The lab has written it and installed it: remove the installation, after the
# only pod of its network.
"${lab[@]}" up --install=manifests
cat >"$work/kubectl" <<EOF
#!/bin/sh
exec "$PWD/bin/ovsdn-lab" --name "$name" kubectl -- "\$@"
EOF
chmod +x "$work/kubectl"
export PATH="$work:$PATH"
export OVSDN=/var/lib/ovsdn-lab/$name/install
export OVSDN_UNINSTALL=$work/kustomization
mkdir "$OVSDN_UNINSTALL"
cat >"$OVSDN_UNINSTALL/kustomization.yaml" <<EOF
resources: [$(realpath --relative-to="$OVSDN_UNINSTALL" deploy/uninstall)]
images:
$(grep 'name: ovsdn/node,' "$OVSDN/kustomization.yaml")
configMapGenerator:
- name: ovsdn-uninstall
  namespace: ovsdn-uninstall
  behavior: merge
  literals:
$(grep -e '- kube-apiserver=' "$OVSDN/kustomization.yaml")
EOF
kubectl -n kube-system scale deployment/coredns --replicas=0 >/dev/null
kubectl -n kube-system wait --for=delete pod --selector=k8s-app=kube-dns --timeout=60s >/dev/null
kubectl delete -k "$OVSDN" >/dev/null

# blocks PAGE writes its blocks to files N.KIND, KIND being run, node or skip.
blocks() {
  awk -v dir="$work/$1" '
    /^```sh( node| skip)?$/ && !open { open = 1; n++; kind = $2 == "" ? "run" : $2; file = sprintf("%s/%02d.%s", dir, n, kind); line = NR; print "# line " NR > file; next }
    /^```/ { open = 0; next }
    open { print > file }
  ' "docs/$1.md"
}

for page in "${pages[@]}"; do
  mkdir "$work/$page"
  blocks "$page"
  for block in "$work/$page"/*; do
    where="docs/$page.md, $(head -1 "$block" | cut -c3-)"
    case $block in
    *.skip) echo "=== $where: skipped"; continue ;;
    esac
    echo "=== $where"
    tail -n +2 "$block" | sed 's/^/$ /'
    case $block in
    *.node) "${lab[@]}" exec node1 -- bash -euc "$(cat "$block")" ;;
    *) bash -euo pipefail "$block" ;;
    esac || { echo "verify-docs: $where failed" >&2; exit 1; }
  done
done
echo "verify-docs: all commands of ${pages[*]} succeeded"
