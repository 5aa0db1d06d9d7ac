package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// The ack tables of known failure B41: five messages of one batch, every
// combination of the four statuses, against a model of push-pop-ack.md 4.4.

const tableMessages = 5

var tableStatuses = [...]string{"completed", "failed", "retry", "dlq"}

// combination gives the statuses of the n-th of 4^5 combinations.
func combination(n int) (statuses [tableMessages]string) {
	for i := range statuses {
		statuses[i] = tableStatuses[n&3]
		n >>= 2
	}
	return statuses
}

const combinations = 1 << (2 * tableMessages)

// fate is where a message must end.
type fate struct{ pending, filed bool }

// inOneCall is the model of one call: a message comes back when it was to be
// retried or failed with budget left, and nothing else does, as all five are
// mentioned.
func inOneCall(statuses [tableMessages]string, spent bool) (fates [tableMessages]fate) {
	for i, s := range statuses {
		switch {
		case s == "retry" || s == "failed" && !spent:
			fates[i].pending = true
		case s == "dlq" || s == "failed":
			fates[i].filed = true
		}
	}
	return fates
}

// ackTable is a queue with a partition of five leased messages for each
// combination.
type ackTable struct {
	*run
	queue      string
	partitions map[string]string // name to id
	leases     map[string]string
}

func newAckTable(t *testing.T, retryLimit int) *ackTable {
	t.Helper()
	b, err := Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	a := &ackTable{
		run: &run{t: t, broker: b}, queue: "table", partitions: map[string]string{}, leases: map[string]string{},
	}
	a.must("POST", "/api/v1/configure", map[string]any{"queue": a.queue, "options": map[string]int{"retryLimit": retryLimit}}, 200)
	var items []any
	for n := range combinations {
		for i := range tableMessages {
			items = append(items, map[string]any{"queue": a.queue, "partition": partitionName(n), "transactionId": messageName(i), "payload": i})
		}
	}
	a.must("POST", "/api/v1/push", map[string]any{"items": items}, 201)
	for _, m := range a.popAll() {
		a.partitions[m.partition], a.leases[m.partition] = m.partitionID, m.lease
	}
	if len(a.partitions) != combinations {
		t.Fatalf("popped %d partitions, expected %d", len(a.partitions), combinations)
	}
	return a
}

func partitionName(n int) string { return fmt.Sprintf("p%04d", n) }
func messageName(i int) string   { return fmt.Sprintf("m%d", i) }

func (a *ackTable) must(method, path string, body any, status int) value {
	a.t.Helper()
	v, err := a.call(method, path, body, status)
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

type poppedMessage struct{ partition, partitionID, lease, id string }

// popAll pops until nothing is left.
func (a *ackTable) popAll() (all []poppedMessage) {
	a.t.Helper()
	for {
		ans, err := a.broker.Do(a.t.Context(), "GET", "/api/v1/pop/queue/"+a.queue+"?partitions=64&batch=1000", http.Header{}, nil)
		if err != nil {
			a.t.Fatal(err)
		}
		if ans.Status == http.StatusNoContent {
			return all
		}
		v, err := parseValue(string(ans.Body))
		if err != nil || ans.Status != http.StatusOK {
			a.t.Fatalf("pop: %d, %v", ans.Status, err)
		}
		messages, _ := v.field("messages")
		for _, m := range messages.elems {
			all = append(all, poppedMessage{fieldText(m, "partition"), fieldText(m, "partitionId"), fieldText(m, "leaseId"), fieldText(m, "transactionId")})
		}
	}
}

// fieldText is a field of an object: a string's text, anything else as it stands.
func fieldText(v value, name string) string {
	f, _ := v.field(name)
	if f.kind == text {
		return f.str
	}
	return f.raw
}

// letters reads the dead letters by partition.
func (a *ackTable) letters() map[string][]string {
	a.t.Helper()
	got := map[string][]string{}
	for offset := 0; ; offset += 1000 {
		v := a.must("GET", fmt.Sprintf("/api/v1/dlq?queue=%s&limit=1000&offset=%d", a.queue, offset), nil, 200)
		messages, _ := v.field("messages")
		for _, m := range messages.elems {
			p := fieldText(m, "partition")
			got[p] = append(got[p], fieldText(m, "transactionId"))
		}
		if len(messages.elems) < 1000 {
			return got
		}
	}
}

// check compares what comes back and what was filed with the fates.
func (a *ackTable) check(fates map[string][tableMessages]fate) {
	a.t.Helper()
	back := map[string][]string{}
	for _, m := range a.popAll() {
		back[m.partition] = append(back[m.partition], m.id)
	}
	filed := a.letters()
	for n := range combinations {
		p := partitionName(n)
		var wantBack, wantFiled []string
		for i, f := range fates[p] {
			if f.pending {
				wantBack = append(wantBack, messageName(i))
			}
			if f.filed {
				wantFiled = append(wantFiled, messageName(i))
			}
		}
		slices.Sort(filed[p])
		if !slices.Equal(back[p], wantBack) {
			a.t.Errorf("%v: expected back %v, found %v", combination(n), wantBack, back[p])
		}
		if !slices.Equal(filed[p], wantFiled) {
			a.t.Errorf("%v: expected dead letters %v, found %v", combination(n), wantFiled, filed[p])
		}
	}
}

// TestAckTable acks five messages in one call, every combination, with and
// without budget, on the ack route and in a transaction.
func TestAckTable(t *testing.T) {
	for _, c := range []struct {
		name        string
		retryLimit  int
		transaction bool
	}{{"budget", 3, false}, {"spent", 0, false}, {"transaction", 3, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newAckTable(t, c.retryLimit)
			fates := map[string][tableMessages]fate{}
			for n := range combinations {
				p, statuses := partitionName(n), combination(n)
				fates[p] = inOneCall(statuses, c.retryLimit == 0)
				var acks []any
				for i, s := range statuses {
					acks = append(acks, map[string]any{"type": "ack", "transactionId": messageName(i), "partitionId": a.partitions[p],
						"leaseId": a.leases[p], "status": s})
				}
				if c.transaction {
					a.checkResults(a.must("POST", "/api/v1/transaction", map[string]any{"operations": acks}, 200), statuses, fates[p])
				} else {
					a.checkVerdicts(a.must("POST", "/api/v1/ack/batch", map[string]any{"acknowledgments": acks}, 200), statuses, fates[p])
				}
			}
			a.check(fates)
		})
	}
}

// checkVerdicts compares the per-item verdicts of one call (B42): all are
// carried out, the filed ones say so, and the lease is released once at most
// on one item.
func (a *ackTable) checkVerdicts(v value, statuses [tableMessages]string, fates [tableMessages]fate) {
	a.t.Helper()
	if len(v.elems) != tableMessages {
		a.t.Fatalf("%v: %d verdicts", statuses, len(v.elems))
	}
	released := 0
	for i, e := range v.elems {
		want := fmt.Sprintf("%d %s true null %v false", i, messageName(i), fates[i].filed)
		got := strings.Join([]string{fieldText(e, "index"), fieldText(e, "transactionId"), fieldText(e, "success"), fieldText(e, "error"), fieldText(e, "dlq"), fieldText(e, "noop")}, " ")
		if got != want {
			a.t.Errorf("%v, item %d: expected %q, found %q", statuses, i, want, got)
		}
		if fieldText(e, "leaseReleased") == "true" {
			released++
		}
	}
	if released != 1 {
		a.t.Errorf("%v: %d items say that they released the lease, expected 1: %s", statuses, released, v.raw)
	}
}

func (a *ackTable) checkResults(v value, statuses [tableMessages]string, fates [tableMessages]fate) {
	a.t.Helper()
	results, _ := v.field("results")
	if fieldText(v, "success") != "true" || len(results.elems) != tableMessages {
		a.t.Fatalf("%v: %s", statuses, short(v.raw))
	}
	for i, e := range results.elems {
		if fieldText(e, "success") != "true" || fieldText(e, "dlq") != fmt.Sprint(fates[i].filed) {
			a.t.Errorf("%v, result %d: %s", statuses, i, e.raw)
		}
	}
}

// separate is the model of acks in calls of their own, under the lease that
// the five were popped with.
type separate struct {
	settled  [tableMessages]bool
	filed    [tableMessages]bool
	released bool
}

// ack gives the verdict: success, noop, or the start of the error.
func (s *separate) ack(i int, status string) string {
	switch {
	case s.settled[i] && status == "completed":
		return "noop"
	case s.settled[i]:
		return "already committed"
	case s.released:
		return "invalid or expired lease"
	}
	through := i
	if status == "failed" || status == "retry" {
		through = i - 1
	}
	for j := 0; j <= through; j++ {
		s.settled[j] = true
	}
	s.filed[i] = status == "dlq"
	s.released = status != "completed" || i == tableMessages-1
	return "success"
}

// TestAckTableSeparateCalls acks the five in calls of their own, in a random
// order for each combination: each is judged on what the earlier ones left.
func TestAckTableSeparateCalls(t *testing.T) {
	t.Parallel()
	a := newAckTable(t, 3)
	rng := rand.New(rand.NewPCG(41, 5))
	wrong := 0 // told apart up to ten
	fates := map[string][tableMessages]fate{}
	for n := range combinations {
		p, statuses := partitionName(n), combination(n)
		var model separate
		order := rng.Perm(tableMessages)
		for _, i := range order {
			body := map[string]string{"transactionId": messageName(i), "partitionId": a.partitions[p], "leaseId": a.leases[p], "status": statuses[i]}
			e := a.must("POST", "/api/v1/ack", body, 200).elems[0]
			want := model.ack(i, statuses[i])
			got := "success"
			if fieldText(e, "noop") == "true" {
				got = "noop"
			}
			if fieldText(e, "success") == "false" {
				got = fieldText(e, "error")
			}
			if wrong < 10 && !strings.HasPrefix(got, want) {
				wrong++
				t.Errorf("%v in order %v, item %d: expected %q, found %s", statuses, order, i, want, e.raw)
			}
		}
		var f [tableMessages]fate
		for i := range f {
			f[i] = fate{pending: !model.settled[i], filed: model.filed[i]}
		}
		fates[p] = f
	}
	// A batch that nobody nacked or finished is still leased: its end brings the rest back.
	if err := a.broker.Advance(400 * time.Second); err != nil {
		t.Fatal(err)
	}
	a.check(fates)
}
