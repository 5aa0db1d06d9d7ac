// Command throwing is a consumer whose handler fails, by an error or a panic.
//
// The loop survives it: the message is nacked as failed with the error's text,
// one retry is charged, and the message comes back. Job 3 panics once and then
// works. Job 4 always fails: with a retry limit of 1 it is tried twice and then
// filed as a dead letter, with its error, and the loop goes on to job 5.
//
// It needs a broker at QUEEN_URL (http://127.0.0.1:6632) and nothing but the
// standard library.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"reflect"
	"time"
)

type object = map[string]any

type message struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Data          int    `json:"data"`
}

type deadLetter struct {
	Data         int    `json:"data"`
	ErrorMessage string `json:"errorMessage"`
}

var (
	base  = env("QUEEN_URL", "http://127.0.0.1:6632")
	queue = fmt.Sprintf("jobs-go-%d-%d", os.Getpid(), time.Now().Unix())

	tries   = map[int]int{} // job -> how often its handler ran
	handled []int
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

func handler(job int) error {
	tries[job]++
	if job == 3 && tries[job] == 1 {
		panic("the printer was off")
	}
	if job == 4 {
		return errors.New("job 4 cannot be read")
	}
	handled = append(handled, job)
	return nil
}

// attempt runs the handler and turns a panic into an error.
func attempt(job int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return handler(job)
}

// consume runs until the queue is empty. One message a pop: a batch is settled
// whole.
func consume() {
	for {
		var popped struct{ Messages []message }
		call("GET", "/api/v1/pop/queue/"+queue+"?batch=1&consumerGroup=printers&subscriptionMode=all", nil, &popped)
		if len(popped.Messages) == 0 {
			return
		}
		m := popped.Messages[0]
		ack := object{"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID, "consumerGroup": "printers",
			"status": "completed"}
		if err := attempt(m.Data); err != nil {
			ack["status"], ack["error"] = "failed", err.Error()
		}
		var acked []struct{ Success bool }
		call("POST", "/api/v1/ack", ack, &acked)
		if len(acked) != 1 || !acked[0].Success {
			log.Fatalf("FAIL ack of job %d: %v", m.Data, acked)
		}
	}
}

func main() {
	log.SetFlags(0)
	var ignored any
	call("POST", "/api/v1/configure", object{"queue": queue, "options": object{"retryLimit": 1}}, &ignored)
	var items []object
	for n := 1; n <= 5; n++ {
		items = append(items, object{"queue": queue, "payload": n})
	}
	call("POST", "/api/v1/push", object{"items": items}, &ignored)
	consume()
	check("jobs done, in order", []int{1, 2, 3, 5}, handled)
	check("tries of each job", map[int]int{1: 1, 2: 1, 3: 2, 4: 2, 5: 1}, tries)
	var dlq struct{ Messages []deadLetter }
	call("GET", "/api/v1/dlq?queue="+queue, nil, &dlq)
	check("dead letters", []deadLetter{{4, "job 4 cannot be read"}}, dlq.Messages)
	var depth struct{ Pending int }
	call("GET", "/api/v1/resources/queues/"+queue+"/depth?group=printers", nil, &depth)
	check("jobs left", 0, depth.Pending)
}
