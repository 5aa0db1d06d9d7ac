#!/bin/sh
# Builds the cluster simulator with each planted bug of a cluster
# (internal/plant/cluster.go), one at a time, and runs seeds until one fails. A bug
# that lives fails this, and so does a seed that fails without the bug, too.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
SEEDS=${SEEDS:-100}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
$GO build -o "$dir/clean" ./fuzz/cluster
lived=""
for bug in ${BUGS:-$(sed -n 's/^	[A-Za-z]* *Bug = "\([a-z-]*\)"$/\1/p' internal/plant/cluster.go)}; do
	$GO build -tags bug -ldflags=-X=queen/internal/plant.name="$bug" -o "$dir/bug" ./fuzz/cluster
	if timeout 600 "$dir/bug" -nodes 3 -seeds "$SEEDS" -first >"$dir/out" 2>&1; then
		lived="$lived $bug"
		echo "$bug: NOT FOUND in $SEEDS seeds"
		continue
	fi
	seed=$(sed -n 's/^FAIL seed \([0-9]*\):.*/\1/p' "$dir/out" | head -1)
	[ -n "$seed" ] || { echo "$bug: no seed failed"; tail -20 "$dir/out"; exit 1; }
	if ! "$dir/clean" -nodes 3 -seed "$seed" >"$dir/again" 2>&1; then
		echo "$bug: seed $seed fails without it, too"
		tail -3 "$dir/again"
		exit 1
	fi
	sed -n "s/^FAIL seed/$bug: found by seed/p" "$dir/out"
done
[ -z "$lived" ] || { echo "not found:$lived"; exit 1; }
