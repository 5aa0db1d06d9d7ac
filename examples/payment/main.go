// Command payment is a payment step, exactly once.
//
// A worker takes a payment request under a lease, charges the card, and commits
// everything that follows from it in one call: the ack, a receipt, the order's
// state, a reminder, and a marker that says "this payment was charged". When the
// provider sends its event again, under another id, the marker refuses the step.
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
	"time"
)

type object = map[string]any

type payment struct {
	Order int `json:"order"`
	Cents int `json:"cents"`
}

type message struct {
	TransactionID string  `json:"transactionId"`
	PartitionID   string  `json:"partitionId"`
	LeaseID       string  `json:"leaseId"`
	Data          payment `json:"data"`
}

type verdict struct {
	Success bool
	Reason  string
}

var (
	base      = env("QUEEN_URL", "http://127.0.0.1:6632")
	run       = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().Unix()) // names of this run
	payments  = "payments-" + run
	receipts  = "receipts-" + run
	reminders = "reminders-" + run
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
		if err := json.Unmarshal(text, out); err != nil {
			log.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
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
	call("GET", "/api/v1/pop/queue/"+queue+"?consumerGroup="+group+"&subscriptionMode=all&wait=true&timeout=5000&"+query, nil, &out)
	return out.Messages
}

func orders(queue, group string) (list []int) {
	for _, m := range pop(queue, group, "commitOnDelivery=true") {
		list = append(list, m.Data.Order)
	}
	return list
}

func pushPayment(event string) message {
	var out any
	call("POST", "/api/v1/push", object{"items": []object{
		{"queue": payments, "partition": "card-7", "transactionId": event, "payload": payment{1, 4200}},
	}}, &out)
	got := pop(payments, "chargers", "batch=1")
	check("payments popped", 1, len(got))
	return got[0]
}

// step is the whole effect of a charged payment, as one transaction.
func step(m message) (v verdict) {
	order := fmt.Sprintf("%s:%d", run, m.Data.Order)
	reminder, err := json.Marshal(m.Data)
	if err != nil {
		log.Fatal(err)
	}
	call("POST", "/api/v1/transaction", object{
		"operations": []object{
			{"type": "ack", "transactionId": m.TransactionID, "partitionId": m.PartitionID, "consumerGroup": "chargers", "leaseId": m.LeaseID},
			{"type": "push", "items": []object{{"queue": receipts, "partition": "card-7", "payload": m.Data}}},
		},
		"requiredLeases": []string{m.LeaseID},
		"kv": []object{
			{"op": "put", "ns": "orders", "key": order, "value": "charged", "ttlSeconds": 86400},
			{"op": "putIfAbsent", "ns": "charged", "key": order, "value": 1, "ttlSeconds": 86400, "required": true},
		},
		"timers": []object{{"op": "schedule", "queue": reminders, "timerKey": order, "delayMs": 300, "payload": reminder}},
	}, &v)
	return v
}

func main() {
	log.SetFlags(0)
	check("the step is committed", verdict{Success: true}, step(pushPayment("evt-1")))

	again := pushPayment("evt-1-again")
	check("the second step is refused", verdict{Reason: "kv_precondition"}, step(again))
	var acked []struct{ Success bool }
	call("POST", "/api/v1/ack", object{"transactionId": again.TransactionID, "partitionId": again.PartitionID, "consumerGroup": "chargers",
		"leaseId": again.LeaseID}, &acked)
	check("the event is acked by itself", true, len(acked) == 1 && acked[0].Success)

	var state struct{ Value string }
	call("GET", "/api/v1/kv/orders/"+run+":1", nil, &state)
	check("state of the order", "charged", state.Value)
	check("reminders", []int{1}, orders(reminders, "reminded"))
	check("receipts", []int{1}, orders(receipts, "audit"))
	var depth struct{ Pending int }
	call("GET", "/api/v1/resources/queues/"+payments+"/depth?group=chargers", nil, &depth)
	check("payments left", 0, depth.Pending)
}
