#!/bin/sh
# Builds the simulator with each planted bug and runs seeds until one fails. A bug
# that SEEDS seeds do not find, or a clean build that fails, fails this.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
SEEDS=${SEEDS:-200}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bugs=${BUGS:-$(sed -n 's/^	[A-Za-z]* Bug = "\([a-z-]*\)"$/\1/p' internal/plant/plant.go)}
lived=""
for bug in $bugs; do
	$GO build -tags bug -ldflags "-X queen/internal/plant.name=$bug" -o "$dir/sim" ./fuzz/sim
	if "$dir/sim" -seeds "$SEEDS" -first >"$dir/out"; then
		lived="$lived $bug"
		echo "$bug: NOT FOUND by $SEEDS seeds"
	elif ! grep -q '^FAIL seed' "$dir/out"; then
		cat "$dir/out"
		exit 1
	else
		echo "$bug: $(grep '^found by' "$dir/out")"
		grep '^FAIL seed' "$dir/out" | head -1 | cut -c1-300
	fi
done
$GO build -o "$dir/sim" ./fuzz/sim
"$dir/sim" -seeds "${CLEAN:-20}" | tail -1
if [ -n "$lived" ]; then
	echo "not found:$lived"
	exit 1
fi
