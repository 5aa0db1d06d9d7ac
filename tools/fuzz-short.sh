#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME (3000 inputs), one after another.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
n=0
for file in $(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "fuzz $(dirname "$file") $target"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-3000x}" "./$(dirname "$file")"
		n=$((n + 1))
	done
done
echo "fuzz-short: $n targets"
[ "$n" -gt 0 ]
