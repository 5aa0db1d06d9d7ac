package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// shorthand runs one of the one-line requests that doc.go lists.
func (r *run) shorthand(verb, args string) error {
	left, right, _ := strings.Cut(args, " -> ")
	words, wanted := strings.Fields(left), strings.Fields(right)
	switch verb {
	case "push":
		return r.push(words)
	case "pop":
		return r.pop(words, wanted)
	case "ack":
		return r.ack(words, right)
	case "kv":
		return r.kv(words, right)
	case "timer":
		return r.timer(words, right)
	case "dlq":
		return r.dlq(words, wanted)
	}
	return fmt.Errorf("no verb %q", verb)
}

func (r *run) call(method, path string, body any, status int) (value, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return value{}, err
		}
	}
	a, err := r.broker.Do(context.Background(), method, path, http.Header{"Content-Type": {"application/json"}}, data)
	if err != nil {
		return value{}, err
	}
	if a.Status != status {
		return value{}, fmt.Errorf("%s %s: expected status %d, answer %d %s", method, path, status, a.Status, short(string(a.Body)))
	}
	if err := wellFormed(a); err != nil {
		return value{}, err
	}
	if status == http.StatusNoContent {
		return value{}, nil
	}
	return parseValue(string(a.Body))
}

var idRange = regexp.MustCompile(`^(.*?)(\d+)\.\.(.*?)(\d+)$`)

// ids expands m1..m3 to m1 m2 m3.
func ids(words []string) []string {
	var out []string
	for _, w := range words {
		m := idRange.FindStringSubmatch(w)
		if m == nil || m[1] != m[3] {
			out = append(out, w)
			continue
		}
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(m[4])
		for i := from; i <= to; i++ {
			out = append(out, m[1]+strconv.Itoa(i))
		}
	}
	return out
}

func options(words []string) (plain []string, opts map[string]string) {
	opts = map[string]string{}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			opts[k] = v
		} else {
			plain = append(plain, w)
		}
	}
	return plain, opts
}

func (r *run) push(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("push QUEUE[/PARTITION] ID...")
	}
	queue, partition, ok := strings.Cut(words[0], "/")
	if !ok {
		partition = "Default"
	}
	type item struct {
		Queue         string            `json:"queue"`
		Partition     string            `json:"partition"`
		TransactionID string            `json:"transactionId"`
		Payload       map[string]string `json:"payload"`
	}
	var items []item
	for _, id := range ids(words[1:]) {
		items = append(items, item{queue, partition, id, map[string]string{"id": id}})
	}
	v, err := r.call("POST", "/api/v1/push", map[string]any{"items": items}, http.StatusCreated)
	if err != nil {
		return err
	}
	for i, e := range v.elems {
		if s, _ := e.field("status"); s.str != "queued" {
			return fmt.Errorf("push of %s: %s", items[i].TransactionID, short(e.raw))
		}
	}
	if len(v.elems) != len(items) {
		return fmt.Errorf("push of %d items: %s", len(items), short(v.raw))
	}
	return nil
}

func (r *run) pop(words, wanted []string) error {
	plain, opts := options(words)
	if len(plain) != 1 {
		return fmt.Errorf("pop QUEUE[/PARTITION] KEY=VALUE... -> ID...")
	}
	queue, partition, pinned := strings.Cut(plain[0], "/")
	path := "/api/v1/pop/queue/" + url.PathEscape(queue)
	if pinned {
		path += "/partition/" + url.PathEscape(partition)
	}
	query := url.Values{}
	for k, v := range opts {
		switch k {
		case "group":
			k = "consumerGroup"
		case "mode":
			k = "subscriptionMode"
		}
		query.Set(k, v)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	want, checks := options(wanted)
	if slices.Equal(want, []string{"none"}) {
		_, err := r.call("GET", path, nil, http.StatusNoContent)
		return err
	}
	v, err := r.call("GET", path, nil, http.StatusOK)
	if err != nil {
		return err
	}
	return r.popped(v, ids(want), checks)
}

func (r *run) popped(v value, want []string, checks map[string]string) error {
	msgs, _ := v.field("messages")
	var got []string
	for _, m := range msgs.elems {
		id, _ := m.field("transactionId")
		got = append(got, id.str)
		attempt, _ := m.field("deliveryAttempt")
		if n := checks["attempt"]; n != "" && attempt.raw != n {
			return fmt.Errorf("pop of %s: expected deliveryAttempt %s, found %s", id.str, n, attempt.raw)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("pop: expected %v, found %v", want, got)
	}
	if name := checks["lease"]; name != "" {
		lease, _ := v.field("leaseId")
		r.vars[name] = lease.str
	}
	if name := checks["partition"]; name != "" {
		id, _ := msgs.elems[0].field("partitionId")
		r.vars[name] = id.str
	}
	return nil
}

func (r *run) ack(words []string, want string) error {
	if len(words) < 2 {
		return fmt.Errorf("ack PARTITIONID ID=STATUS... -> success")
	}
	type ack struct {
		TransactionID string `json:"transactionId"`
		PartitionID   string `json:"partitionId"`
		LeaseID       string `json:"leaseId,omitempty"`
		Status        string `json:"status"`
	}
	var acks []ack
	var lease, group string
	for _, w := range words[1:] {
		k, v, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			return fmt.Errorf("ack: %q is not ID=STATUS", w)
		case k == "lease":
			lease = v
		case k == "group":
			group = v
		default:
			acks = append(acks, ack{TransactionID: k, PartitionID: words[0], Status: v})
		}
	}
	for i := range acks {
		acks[i].LeaseID = lease
	}
	body := map[string]any{"acknowledgments": acks}
	if group != "" {
		body["consumerGroup"] = group
	}
	v, err := r.call("POST", "/api/v1/ack/batch", body, http.StatusOK)
	if err != nil {
		return err
	}
	if len(v.elems) != len(acks) {
		return fmt.Errorf("ack: %d answers for %d items", len(v.elems), len(acks))
	}
	for _, e := range v.elems {
		success, _ := e.field("success")
		noop, _ := e.field("noop")
		got := "success"
		if success.raw != "true" {
			got = "refused"
		} else if noop.raw == "true" {
			got = "noop"
		}
		if got != want {
			return fmt.Errorf("ack: expected %s, found %s", want, e.raw)
		}
	}
	return nil
}

func (r *run) kv(words []string, want string) error {
	if len(words) != 2 {
		return fmt.Errorf("kv NS KEY -> VALUE")
	}
	op := map[string]string{"op": "get", "ns": words[0], "key": words[1]}
	v, err := r.call("POST", "/api/v1/kv", map[string]any{"operations": []any{op}}, http.StatusOK)
	if err != nil {
		return err
	}
	results, _ := v.field("results")
	row := results.elems[0]
	found, _ := row.field("found")
	if want == "absent" {
		if found.raw != "false" {
			return fmt.Errorf("kv: expected no such key, found %s", row.raw)
		}
		return nil
	}
	if i := strings.LastIndex(want, " version="); i >= 0 {
		version, _ := row.field("version")
		r.vars[want[i+len(" version="):]] = version.raw
		want = want[:i]
	}
	wantValue, err := parseValue(want)
	if err != nil {
		return err
	}
	if got, _ := row.field("value"); found.raw != "true" || !got.equal(wantValue) {
		return fmt.Errorf("kv: expected %s, found %s", want, row.raw)
	}
	return nil
}

func (r *run) timer(words []string, want string) error {
	if len(words) != 2 {
		return fmt.Errorf("timer QUEUE KEY -> pending")
	}
	path := "/api/v1/timers/" + url.PathEscape(words[0]) + "/" + url.PathEscape(words[1])
	v, err := r.call("GET", path, nil, http.StatusOK)
	if err != nil {
		return err
	}
	if found, _ := v.field("found"); (found.raw == "true") != (want == "pending") {
		return fmt.Errorf("timer: expected %s, found %s", want, v.raw)
	}
	return nil
}

func (r *run) dlq(words, want []string) error {
	plain, opts := options(words)
	query := url.Values{"queue": plain}
	if g := opts["group"]; g != "" {
		query.Set("consumerGroup", g)
	}
	v, err := r.call("GET", "/api/v1/dlq?"+query.Encode(), nil, http.StatusOK)
	if err != nil {
		return err
	}
	msgs, _ := v.field("messages")
	got := []string{}
	for _, m := range msgs.elems {
		id, _ := m.field("transactionId")
		got = append(got, id.str)
	}
	if slices.Equal(want, []string{"none"}) {
		want = []string{}
	}
	if !slices.Equal(got, ids(want)) && !(len(got) == 0 && len(want) == 0) {
		return fmt.Errorf("dlq: expected %v, found %v", want, got)
	}
	return nil
}
