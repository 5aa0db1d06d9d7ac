# Build, try, test and measure the broker. `make test` is what CI runs.

GO         ?= go
FUZZTIME   ?= 3000x
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFILES     = $(shell find . -name '*.go' -not -path './queen-data/*' -not -path './queen-cluster/*')

# Drivers of a broker take these; bench results go to BENCH_JSON.
BENCH_JSON ?= bench.jsonl
ROUNDS     ?= 100
CALLS      ?= 100000
CUTS       ?= 10000

.PHONY: build segdump run cluster demo test unit race lint fuzz fuzz-short sim sim-cluster sim-bugs crash-bugs model million week reclaim-crash bench hold overload examples crash crash-short deadlock powercut limits clean

build: segdump
	$(GO) build -o bin/queen ./cmd/queen

# segdump is the tool that reads a data directory without the broker.
segdump:
	$(GO) build -o bin/segdump ./tools/segdump

# run starts a broker on port 6632 with its data in ./queen-data.
run: build
	@./tools/run.sh

# cluster starts three nodes on ports 6641 to 6643 with their data in ./queen-cluster.
cluster: build
	@./tools/cluster.sh

# demo runs the payment step through three kills and checks every part.
demo: build
	$(GO) run ./tools/demo

test: build lint unit race fuzz-short demo examples crash-short

unit:
	$(GO) test ./...

# race leaves out, or takes samples of, what takes minutes with the race detector;
# unit runs all of it.
race:
	$(GO) test -race -short -timeout 10m ./...

lint:
	@out="$$(gofmt -l $(GOFILES))"; if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(STATICCHECK) ./...
	@GO="$(GO)" ./tools/vulncheck.sh

# fuzz-short runs every fuzz target beyond its seed corpus, a few thousand inputs
# each. FUZZTIME takes a time, too (10m); a run that a time ends can report
# "context deadline exceeded", which is the fuzzing engine's own and no finding.
fuzz-short:
	@GO="$(GO)" FUZZTIME="$(FUZZTIME)" ./tools/fuzz-short.sh

# fuzz runs every target for FUZZTIME each: make fuzz FUZZTIME=10m.
fuzz: FUZZTIME = 10m
fuzz: fuzz-short

# model drives the planner and a model of it side by side: a million random calls.
model:
	$(GO) test ./fsm -run 'TestModel$$' -rapid.checks=10000 -rapid.seed=$(or $(SEED),1) -timeout 3h

# sim runs SEEDS seeds of the simulator, on all cores: the broker's core on a
# simulated disk and clock, with crashes and faults, checked against its whole
# history. crash-bugs shows that it finds bugs that are planted for it.
SEEDS ?= 1000
sim:
	$(GO) build -o bin/sim ./fuzz/sim
	bin/sim -seeds $(SEEDS) -seed $(or $(SEED),1)

# sim-cluster does the same for clusters of three and five nodes, with a network.
sim-cluster:
	$(GO) build -o bin/sim-cluster ./fuzz/cluster
	bin/sim-cluster -seeds $(SEEDS) -seed $(or $(SEED),1) -nodes 0

# sim-bugs shows that it finds the bugs of clusters that are planted for it.
sim-bugs:
	@GO="$(GO)" ./tools/sim-bugs.sh

crash-bugs:
	@GO="$(GO)" ./tools/crash-bugs.sh

# million lists, seeks and deletes a million of everything.
million:
	MILLION=1 $(GO) test -timeout 30m -v -run 'Million|GroupOfManyPartitions' ./fsm

# week simulates a week of traffic with retention and prints what is on disk and in memory day by day.
week:
	$(GO) test ./server/retention -run 'TestWeek$$' -v -count=1

# reclaim-crash takes the power away at every call of a reclaim; the tests take every seventh.
reclaim-crash:
	$(GO) test ./server/retention -run 'TestReclaimCrashedAtEveryCall$$' -v -count=1 -every=1 -timeout 30m

examples: build
	./examples/run.sh

# crash kills the broker with -9 under load, ROUNDS times, and at each named point of
# its code, and checks its whole history after each; deadlock sends overlapping
# transactions, CALLS of them.
crash: build
	$(GO) run ./tools/crash kill -rounds $(ROUNDS)
	$(GO) run ./tools/crash points

deadlock: build
	$(GO) run ./tools/crash deadlock -calls $(CALLS)

crash-short: build
	$(GO) run ./tools/crash kill -rounds 10
	$(GO) run ./tools/crash points -points 8
	$(GO) run ./tools/crash deadlock -calls 10000

# powercut runs the whole broker on a disk in memory, CUTS power cuts, and then
# fails every call, fills the disk and damages every kind of file. A failure
# prints how to run its seed again.
powercut:
	$(GO) test ./tools/powercut -run 'TestPowerCuts$$' -v -cuts=$(CUTS) -seed=$(or $(SEED),1) -timeout 6h
	$(GO) test ./tools/powercut -skip 'TestPowerCuts$$' -all -timeout 6h

# limits runs a broker with 1,024 descriptors, 5,000 queues and 1,000 idle clients.
limits: build
	$(GO) run ./tools/limits

# bench measures what the README promises: about 15 minutes and 15 GB of disk.
bench: build
	$(GO) build -o bin/bench ./tools/bench
	bin/bench step -batch 10 -json $(BENCH_JSON)
	bin/bench step -batch 1 -json $(BENCH_JSON)
	bin/bench step -batch 10 -workers 16 -rate 1000 -json $(BENCH_JSON)
	bin/bench push -batch 1 -json $(BENCH_JSON)
	bin/bench push -batch 100 -json $(BENCH_JSON)
	bin/bench push -batch 100 -via transaction -json $(BENCH_JSON)
	bin/bench e2e -json $(BENCH_JSON)
	bin/bench partitions -json $(BENCH_JSON)
	bin/bench retained -json $(BENCH_JSON)

# hold builds a million partitions with a cursor each and 100,000 keys, and prints
# how long anything holds the broker's loop while steps run (HOLD: flags for less).
hold: build
	$(GO) build -o bin/bench ./tools/bench
	bin/bench hold -dur 150s -json $(BENCH_JSON) $(HOLD)

# overload offers three times the sustained rate for ten minutes (OVERLOAD: flags).
overload: build
	$(GO) build -o bin/bench ./tools/bench
	bin/bench overload -json $(BENCH_JSON) $(OVERLOAD)

clean:
	rm -rf bin bench-data crash-data limits-data
