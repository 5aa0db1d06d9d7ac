# Helpers of the shell examples: calls, checks, and reading the flat JSON that
# these examples meet (no value holds a quote or a brace of its own).

QUEEN_URL=${QUEEN_URL:-http://127.0.0.1:6632}
run=sh-$$-$(date +%s) # names of this run

# post PATH BODY and get PATH print the answer; a status of 400 or more ends the
# program.
post() { curl -sS --fail-with-body -m 30 -X POST -H 'Content-Type: application/json' -d "$2" "$QUEEN_URL$1"; }
get() { curl -sS --fail-with-body -m 30 "$QUEEN_URL$1"; }

# field NAME prints the first value of that name, without quotes; fields all of
# them, one a line.
fields() { grep -oE "\"$1\": *(\"[^\"]*\"|[^,}\"]+)" | sed -E 's/^"[^"]*": *//; s/^"(.*)"$/\1/; s/[] ]*$//'; }
field() { fields "$1" | head -n 1; }

# messages prints the messages of a pop's answer, one a line.
messages() { sed -E 's/^.*"messages": *\[//; s/\] *(,|\}).*$//' | sed 's/}, *{"id"/}\
{"id"/g'; }

check() { # WHAT EXPECTED FOUND
	if [ "$2" != "$3" ]; then
		echo "FAIL $1: expected $2, found $3" >&2
		exit 1
	fi
	echo "ok   $1: $3"
}
