#!/usr/bin/env bash
# release.sh [--owner NAME] [--sign KEY] [FOLDER]: build what a release is made of into FOLDER (dist/), and check it.
#
# Wheel and sdist, each built twice and compared byte for byte; server.json of the registry, for the GitHub account
# NAME; SHA256SUMS of all, with a signature by the SSH key KEY. Publishes nothing and tags nothing: it prints how.
# To verify: ssh-keygen -Y verify -f ALLOWED_SIGNERS -I IDENTITY -n mcproxy -s SHA256SUMS.sig < SHA256SUMS
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
owner='' key='' folder=dist
while (($#)); do
    case $1 in
        --owner) owner=$2; shift 2 ;;
        --sign) key=$2; shift 2 ;;
        -*) echo "usage: release.sh [--owner NAME] [--sign KEY] [FOLDER]" >&2; exit 2 ;;
        *) folder=$1; shift ;;
    esac
done
fail() { echo "release: $*" >&2; exit 1; }

version=$($python -c 'import mcproxy; print(mcproxy.__version__)')
grep -q "^## \[$version\]" CHANGELOG.md || echo "not yet: CHANGELOG.md has no section [$version]"
[ -z "$(git status --porcelain)" ] || echo "not yet: the work tree has changes that are not committed"

# The time that archives note is that of the commit, so that anyone who builds it gets the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
[ -z "$(ls -A "$folder")" ] || fail "$folder is not empty"
second=$(mktemp -d)
trap 'rm -rf "$second"' EXIT
for each in "$folder" "$second"; do $python -m hatchling build --directory "$each" >/dev/null; done
for file in "$folder"/*; do
    cmp "$file" "$second/${file##*/}" || fail "${file##*/} differs from one build to the next"
done
for file in "mcproxy-$version-py3-none-any.whl" "mcproxy-$version.tar.gz"; do
    [ -f "$folder/$file" ] || fail "$file was not built"
done

$python - "$version" "$owner" "$folder" <<'PYTHON'
import json, sys
from pathlib import Path

version, owner, folder = sys.argv[1:]
listing = json.loads(Path("server.json").read_text())
versions = {listing["version"], *(package["version"] for package in listing["packages"])}
if versions != {version}:
    sys.exit(f"release: server.json is of {', '.join(sorted(versions))}, and the package of {version}")
if owner:
    listing["name"] = listing["name"].replace("OWNER", owner)
    Path(folder, "server.json").write_text(json.dumps(listing, indent=2) + "\n")
PYTHON

(cd "$folder" && sha256sum -- * >SHA256SUMS)
[ -z "$key" ] || ssh-keygen -q -Y sign -f "$key" -n mcproxy "$folder/SHA256SUMS"

ls "$folder"
[ -n "$owner" ] || echo "left out: server.json, for want of --owner"
[ -n "$key" ] || echo "left out: the signature, for want of --sign"
echo "then: .ci/run; git tag --sign v$version; upload $folder to PyPI, and server.json with mcp-publisher"
