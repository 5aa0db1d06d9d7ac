#!/bin/sh
# Runs every example against a broker of its own (../bin/queen, or $QUEEN) on a
# free port with a scratch folder. A language without its interpreter is left
# out, and said so. With QUEEN_URL set the examples use that broker instead.
set -u
cd "$(dirname "$0")"
broker= scratch=

# start starts the broker on a random port, and on another one when that is taken.
start() {
	scratch=$(mktemp -d)
	for _ in 1 2 3 4 5; do
		port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 30000))
		PORT=$port QUEEN_BIND_ADDR=127.0.0.1 QUEEN_RAFT_DIR=$scratch/data "${QUEEN:-../bin/queen}" serve >>"$scratch/log" 2>&1 &
		broker=$!
		for _ in $(seq 100); do
			kill -0 $broker 2>/dev/null || break
			if curl -fsS -o /dev/null "http://127.0.0.1:$port/health" 2>/dev/null; then
				QUEEN_URL=http://127.0.0.1:$port
				export QUEEN_URL
				return
			fi
			sleep 0.1
		done
	done
	echo "the broker did not start; the end of its log:"
	tail -n 20 "$scratch/log"
	exit 1
}

stop() {
	status=$?
	[ -z "$broker" ] || kill "$broker" 2>/dev/null && wait "$broker" 2>/dev/null
	[ -z "$scratch" ] || rm -rf "$scratch"
	exit $status
}
trap stop EXIT
trap 'exit 1' INT TERM

failed=0
run() { # NAME INTERPRETER COMMAND...
	name=$1 interpreter=$2
	shift 2
	if ! command -v "$interpreter" >/dev/null 2>&1; then
		echo "--   $name: left out, there is no $interpreter"
	elif out=$("$@" 2>&1); then
		echo "ok   $name"
	else
		echo "FAIL $name"
		echo "$out" | sed 's/^/     /'
		failed=1
	fi
}

[ -n "${QUEEN_URL:-}" ] || start
for e in payment pipeline throwing; do
	run "$e (shell)" curl sh "$e/$e.sh"
	run "$e (python)" python3 python3 "$e/$e.py"
	run "$e (javascript)" node node "$e/$e.js"
	run "$e (go)" go go run "./$e"
done

# The README's step, as it is printed there.
readme() {
	dir=$(mktemp -d)
	sed -n '/^Q=http/,/^```$/p' ../README.md | sed -e '$d' -e "s#http://127.0.0.1:6632#$QUEEN_URL#" >"$dir/step.sh"
	out=$(cd "$dir" && sh step.sh 2>&1)
	rm -rf "$dir"
	echo "$out"
	case "$out" in *'"success":true,"results"'*) ;; *) return 1 ;; esac
}
run "the step in README.md (shell)" curl readme
exit $failed
