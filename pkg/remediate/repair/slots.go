package repair

import (
	"context"
	"time"
)

// Slots is the fleet's budget for what disrupts: so many nodes of a pool at once.
type Slots interface {
	// Acquire takes a slot for an action that ends within atMost. The error says why there is none now: "waiting: …",
	// or "refused: …" where waiting is no use.
	Acquire(ctx context.Context, action string, atMost time.Duration) (Slot, error)
}

// Slot is the right to disrupt this node.
type Slot interface {
	Valid() bool                 // it is still ours, by what was last confirmed
	Release(ctx context.Context) // at the end, whatever came of it
}

// noSlot is the slot of an action that needs none.
type noSlot struct{}

func (noSlot) Valid() bool             { return true }
func (noSlot) Release(context.Context) {}
