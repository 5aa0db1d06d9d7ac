package main

import (
	"context"

	"queen/tools/internal/api"
)

// passingQueue keeps its messages for a second, leavingQueue is deleted again and again; nothing of them is booked.
const (
	passingQueue = "passing"
	leavingQueue = "leaving"
)

// leaveEvery is how many pushes pass before the queue that leaves is made and deleted.
const leaveEvery = 50

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
