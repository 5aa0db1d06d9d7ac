package main

import (
	"context"
	"fmt"
	"strings"

	"queen/tools/internal/api"
)

// passingQueue keeps its messages for a second, leavingQueue is deleted again and again; nothing of them is booked.
const (
	passingQueue = "passing"
	leavingQueue = "leaving"
)

// How many pushes pass before the queue that leaves is made and deleted, and before a large value is put, of which a
// checkpoint has to write enough to be worth compacting.
const (
	leaveEvery = 50
	valueEvery = 5
	values     = 16
	valueBytes = 48 << 10
)

// churner pushes what retention takes away again, so that there are files to
// free and to write anew.
type churner struct{ *load }

func (c *churner) run(ctx context.Context) error {
	items := make([]api.Item, 20)
	for i := range items {
		items[i] = api.Item{Queue: passingQueue, Partition: partitionName(i), Payload: inputBody{"passes"}}
	}
	for n := 0; !c.stop.Load(); n++ {
		_, err := c.api.Push(ctx, items...)
		if err == nil && n%leaveEvery == 0 {
			err = c.leave(ctx)
		}
		if err == nil && n%valueEvery == 0 {
			_, err = c.api.KV(ctx, api.KVOp{Op: "put", NS: "churn", Key: fmt.Sprint(n / valueEvery % values), Value: strings.Repeat("v", valueBytes), TTLSeconds: 3600})
		}
		if err != nil {
			if c.stop.Load() || ended(err) {
				return nil
			}
			return err
		}
	}
	return nil
}

// leave makes a queue with a message, and deletes it: its log is to go.
func (c *churner) leave(ctx context.Context) error {
	if _, err := c.api.Push(ctx, api.Item{Queue: leavingQueue, Partition: "p", Payload: inputBody{"leaves"}}); err != nil {
		return err
	}
	return c.api.DeleteQueue(ctx, leavingQueue)
}
