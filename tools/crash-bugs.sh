#!/bin/sh
# Builds the checks with each planted bug (internal/plant), one at a time, and
# runs those that should find it, for five minutes at most. It prints the name of
# the check that does. A bug that lives fails this, and so does a clean build that
# any of the checks refuses.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bugs=${BUGS:-$(sed -n 's/^	[A-Za-z]* *Bug = "\([a-z-]*\)"$/\1/p' internal/plant/plant.go)}

# checks lists the checks that look for a bug, the quickest first:
#   sim                 seeds of fuzz/sim
#   package TestName    a test
checks() {
	case $1 in
	skip-dir-sync) echo "./tools/powercut TestPowerCuts" ;;
	count-records) echo "./recovery TestI1DuplicateCopyIsOneCopy" ;;
	bad-sum-is-end) echo "./recovery TestB03" ;;
	reclaim-ahead) echo "./server/retention TestReclaimJudgesByItsCheckpoint" ;;
	stale-table | unlink-too-early) echo "./server/retention TestReclaimCrashedAtEveryCall" ;;
	*) echo sim ;;
	esac
}

# build makes the program of a check in $dir/check; $1 is the bug, empty for none.
build() {
	flags=""
	[ -z "$1" ] || flags="-tags bug -ldflags=-X=queen/internal/plant.name=$1"
	if [ "$2" = sim ]; then
		$GO build $flags -o "$dir/check" ./fuzz/sim
	else
		$GO test -c $flags -o "$dir/check" "$2"
	fi
}

# run runs it; its status is that of the check.
run() {
	if [ "$1" = sim ]; then
		timeout 300 "$dir/check" -seeds "$3" -first
	else
		(cd "$1" && timeout 300 "$dir/check" -test.run "^$2" -test.timeout 300s)
	fi >"$dir/out" 2>&1
}

# found names the check that failed, from its output; empty when none did but
# something else went wrong.
found() { sed -n -e 's/^FAIL seed.*/the history of fuzz\/sim/p' -e 's/^--- FAIL: \([^ ]*\).*/\1/p' "$dir/out" | head -1; }

lived=""
for bug in $bugs; do
	# shellcheck disable=SC2046
	set -- $(checks "$bug")
	build "$bug" "$1"
	began=$(date +%s)
	if run "$1" "${2:-}" "${SEEDS:-200}"; then
		lived="$lived $bug"
		echo "$bug: NOT FOUND by $*"
		continue
	fi
	by=$(found)
	if [ -z "$by" ]; then
		cat "$dir/out"
		exit 1
	fi
	took=$(($(date +%s) - began))
	seed=$(sed -n 's/^FAIL seed \([0-9]*\):.*/\1/p' "$dir/out" | head -1)
	if [ -n "$seed" ]; then # a seed that fails without the bug, too, has not found it
		build "" sim
		if ! "$dir/check" -seed "$seed" >"$dir/out" 2>&1; then
			cat "$dir/out"
			exit 1
		fi
	fi
	echo "$bug: found by $by in $took s"
done
for bug in $bugs; do checks "$bug"; done | sort -u | while read -r package name; do
	build "" "$package"
	if ! run "$package" "${name:-}" "${CLEAN:-20}"; then
		cat "$dir/out"
		echo "the clean build does not pass $package ${name:-}"
		exit 1
	fi
	echo "clean: $package ${name:-}"
done
if [ -n "$lived" ]; then
	echo "not found:$lived"
	exit 1
fi
