// Package conformance drives the real HTTP server over data files that a person
// can read: every row of the wire contract has a case in testdata, and a row
// without one fails the build. The package also starts the broker that the
// cases, and the fuzz targets of HTTP bodies, run against: in process, on the
// memory file system, on a clock that only the test moves.
//
// # FORMAT of the data files (testdata/*.txt)
//
// A file is a list of cases. A case starts with the line "case", then the
// section and row of the contract that it is about, a colon, and what happens.
// It begins with a broker of its own, empty, at a fixed time:
//
//	case transaction 12, row 5: ack 14 again under the released lease, beside an incr
//	rows transaction/12/5 transaction/4.1/repeat
//	use parcels
//
//	POST /api/v1/transaction
//	{"operations": [{"type": "ack", "transactionId": "scan-14", "partitionId": "${P}",
//	                 "consumerGroup": "routing", "leaseId": "${L}"}],
//	 "kv": [{"op": "incr", "ns": "counters", "key": "n", "delta": 1, "forever": true}]}
//	200 {"transactionId": <uuid>, "success": false, "reason": "rejected_ack",
//	     "error": <starts "QTXN ">, "results": []}
//
//	kv counters n -> absent
//
// Lines that start with # are comments. Blank lines end a request. The lines of
// a case are:
//
//	rows ID...            rows of testdata/rows.txt that the case covers
//	setting NAME=VALUE    starts the case's broker with this setting (DISK_PERCENT: how full the disk is)
//	use NAME              runs the steps of a fixture (fixtures.txt: "fixture NAME" in place of "case")
//	set NAME = TEXT       gives a variable a value
//	advance 61s           moves the broker's clock, and waits until what became due is done
//	METHOD PATH           a request: then headers ("Name: value"), the body, and the answer, which starts
//	                      with the status at the start of a line
//	begin NAME            one line above a request without an answer: sends it and does not wait
//	end NAME              one line above the answer that the request of "begin NAME" must get
//	abort NAME            closes the connection of "begin NAME"
//	parked N              waits until N pops wait in the broker
//	sync hold             from here every sync of the disk waits
//	sync held             waits until one does
//	sync release          lets them go on
//	unanswered NAME       the request of "begin NAME" must not have been answered yet
//	shutdown now          asks the server to stop, as SIGTERM does
//	restart NAME=VALUE... stops the broker and starts it on the same data with these settings
//	crash NAME=VALUE...   the same, but the power goes: what was not synced is gone
//	                      ("restart as before", "crash as before": with the case's settings)
//
// and shorthands, each of which sends one request:
//
//	push QUEUE[/PARTITION] ID...               each must be queued; m1..m5 is five ids
//	pop QUEUE[/PARTITION] KEY=VALUE... -> ID... [attempt=N] [lease=VAR] [partition=VAR]
//	pop ... -> none                            the pop must answer 204
//	ack PARTITIONID ID=STATUS... [lease=ID] [group=NAME] -> success|noop|refused
//	kv NS KEY -> JSON [version=VAR]            or -> absent
//	timer QUEUE KEY -> pending                 or -> absent
//	dlq QUEUE [group=NAME] -> ID...            newest first; or -> none
//
// The status line is the code, then optionally ", state unchanged" or ", state
// changed", then the body that is expected, on this line or the next ones;
// before it there may be headers that are expected. Around an answer of 4xx, a
// rolled back transaction and a lost KV gate the state is compared without
// being told: state digest and commit index must be equal before and after.
// Every JSON answer must be valid and have its content type, every 204 must be
// empty, every 429 and 503 must have Retry-After in whole seconds.
//
// # Expected bodies
//
// JSON, where any value may be a wildcard and an object or an array may end in
// ... (further fields or elements do not matter). Without ... an object has
// exactly the fields that are written.
//
//	<uuid> <digits> <string> <text> <bool> <int> <number> <any> <object> <array>
//	                  digits: a string of decimal digits; text: a string that is not empty
//	<time> <time3>    ISO-8601, UTC, Z, 6 or 3 fractional digits
//	<near +90s>       a time that is the broker's time and 90 s, give or take 2 s (<near3 ...>: 3 digits)
//	<absent>          the field must not be there
//	<starts "a"> <contains "a"> <oneof "a" "b" ...> <not VALUE> <above 7> <raw BYTES>
//	                  raw: exactly these bytes, to the last > of the line
//
// "as NAME" inside a wildcard keeps the value in a variable: <uuid as L>.
//
// # Variables
//
// ${NAME} is replaced everywhere, in expected bodies too. ${q} is a name that no
// other case has, ${now+61s} a broker time. Functions: ${repeat TEXT N},
// ${each N TEXT} (TEXT N times with # as 1..N, joined by commas), ${nest N}
// (N nested arrays), ${b64 TEXT}, ${zstd TEXT} (base64 of it compressed),
// ${hex FF00} (bytes), ${escape TEXT} (percent-encoded), ${noise N} (text that
// does not compress), ${token CLAIM=VALUE...} (signed with the case's JWT_SECRET; a
// claim like exp=-60s is a time from now). The error bodies of errors-limits.md 1 have short forms:
// ${rollback REASON}, ${engine CODE}, ${refusal ERROR REASON} (KV, timers).
package conformance
