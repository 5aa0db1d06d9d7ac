// Command pipeline is a pipeline of three stages, exactly once.
//
//	raw -> parse -> parsed -> enrich -> enriched -> total -> results
//
// Each stage pops a batch under a lease and commits one call: the ack of the
// batch, one output for each input, and its counters. Whatever is sent twice
// counts once: the producer sends every message again, and each stage loses the
// answer to every other call and sends the same call again, which the broker
// refuses.
//
// It needs a broker at QUEEN_URL (http://127.0.0.1:6632) and nothing but the
// standard library.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

type object = map[string]any

type message struct {
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	Partition     string          `json:"partition"`
	LeaseID       string          `json:"leaseId"`
	Data          json.RawMessage `json:"data"`
}

type verdict struct {
	Success bool
	Reason  string
}

const count = 20

var (
	base       = env("QUEEN_URL", "http://127.0.0.1:6632")
	run        = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().Unix())  // names of this run
	doneBefore = []string{"rejected_ack", "duplicate", "kv_precondition"} // how a repeated step is refused
)

func env(name, value string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return value
}

// call sends JSON and decodes the answer into out; 204 leaves out alone.
func call(method, path string, body, out any) {
	b, err := json.Marshal(body)
	if err != nil {
		log.Fatal(err)
	}
	req, err := http.NewRequest(method, base+path, bytes.NewReader(b))
	if err != nil {
		log.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		log.Fatalf("%s %s: status %d: %s %v", method, path, resp.StatusCode, text, err)
	}
	if len(text) > 0 {
		decode(text, out)
	}
}

func decode(text []byte, out any) {
	if err := json.Unmarshal(text, out); err != nil {
		log.Fatalf("%v in %s", err, text)
	}
}

func check(what string, expected, found any) {
	if !reflect.DeepEqual(expected, found) {
		log.Fatalf("FAIL %s: expected %v, found %v", what, expected, found)
	}
	fmt.Printf("ok   %s: %v\n", what, found)
}

func pop(queue, group, query string) []message {
	var out struct{ Messages []message }
	call("GET", "/api/v1/pop/queue/"+queue+"-"+run+"?consumerGroup="+group+"&subscriptionMode=all&"+query, nil, &out)
	return out.Messages
}

func commit(name, target string, messages []message, outputs []any) (v verdict) {
	last := messages[len(messages)-1] // its ack settles the whole batch
	var items []object
	for i, m := range messages {
		items = append(items, object{"queue": target + "-" + run, "partition": m.Partition, "transactionId": m.TransactionID, "payload": outputs[i]})
	}
	call("POST", "/api/v1/transaction", object{
		"operations": []object{
			{"type": "ack", "transactionId": last.TransactionID, "partitionId": last.PartitionID, "consumerGroup": name, "leaseId": last.LeaseID},
			{"type": "push", "items": items},
		},
		"requiredLeases": []string{last.LeaseID},
		"kv":             []object{{"op": "incr", "ns": "pipeline", "key": run + ":" + name, "delta": len(messages), "ttlSeconds": 86400}},
	}, &v)
	return v
}

// stage runs until its input is empty and returns how often a repeat was
// refused.
func stage(name, source, target string, work func(in json.RawMessage) any) (refused int) {
	for steps := 1; ; steps++ {
		messages := pop(source, name, "batch=4")
		if len(messages) == 0 {
			return refused
		}
		var outputs []any
		for _, m := range messages {
			outputs = append(outputs, work(m.Data))
		}
		if v := commit(name, target, messages, outputs); !v.Success {
			log.Fatalf("FAIL stage %s: %+v", name, v)
		}
		if steps%2 == 1 { // the answer was lost: the same call again
			if v := commit(name, target, messages, outputs); v.Success || !slices.Contains(doneBefore, v.Reason) {
				log.Fatalf("FAIL stage %s, a repeated step: %+v", name, v)
			}
			refused++
		}
	}
}

type enriched struct {
	N      int `json:"n"`
	Square int `json:"square"`
}

func parse(in json.RawMessage) any {
	var text string
	decode(in, &text)
	n, err := strconv.Atoi(strings.TrimPrefix(text, "n="))
	if err != nil {
		log.Fatal(err)
	}
	return object{"n": n}
}

func enrich(in json.RawMessage) any {
	var e enriched
	decode(in, &e)
	e.Square = e.N * e.N
	return e
}

func total(in json.RawMessage) any {
	var e enriched
	decode(in, &e)
	return e.Square
}

func main() {
	log.SetFlags(0)
	partitions := []string{"even", "odd"}
	var items []object
	squares := map[string][]int{}
	for n := 1; n <= count; n++ {
		p := partitions[n%2]
		squares[p] = append(squares[p], n*n)
		items = append(items, object{"queue": "raw-" + run, "partition": p, "transactionId": fmt.Sprint("m-", n), "payload": fmt.Sprint("n=", n)})
	}
	var pushed []struct{ Status string }
	call("POST", "/api/v1/push", object{"items": items}, &pushed)
	call("POST", "/api/v1/push", object{"items": items}, &pushed)
	added := 0
	for _, p := range pushed {
		if p.Status != "duplicate" {
			added++
		}
	}
	check("messages that the producer's second try added", 0, added)

	refused := stage("parse", "raw", "parsed", parse)
	refused += stage("enrich", "parsed", "enriched", enrich)
	refused += stage("total", "enriched", "results", total)
	check("repeated steps were refused", true, refused > 0)

	for _, name := range []string{"parse", "enrich", "total"} {
		var row struct{ Value int }
		call("GET", "/api/v1/kv/pipeline/"+run+":"+name, nil, &row)
		check("messages counted by "+name, count, row.Value)
	}
	results := map[string][]int{}
	for _, m := range pop("results", "reader", "commitOnDelivery=true&partitions=2") {
		var n int
		decode(m.Data, &n)
		results[m.Partition] = append(results[m.Partition], n)
	}
	for _, p := range partitions {
		check("results in "+p+", in order", squares[p], results[p])
	}
}
