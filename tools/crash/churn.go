package main

import (
	"context"

	"queen/tools/internal/api"
)

// passingQueue keeps its messages for a second; nothing of it is booked.
const passingQueue = "passing"

// churner pushes what retention takes away again, so that there are files to
// free and to write anew.
type churner struct{ *load }

func (c *churner) run(ctx context.Context) error {
	items := make([]api.Item, 20)
	for i := range items {
		items[i] = api.Item{Queue: passingQueue, Partition: partitionName(i), Payload: inputBody{"passes"}}
	}
	for !c.stop.Load() {
		if _, err := c.api.Push(ctx, items...); err != nil {
			if c.stop.Load() || ended(err) {
				return nil
			}
			return err
		}
	}
	return nil
}
