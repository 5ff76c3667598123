package repair

import (
	"context"

	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
)

// noSlot is the slot of an action that does not need one.
type noSlot struct{}

var _ fleet.Held = noSlot{}

func (noSlot) Valid() bool             { return true }
func (noSlot) Release(context.Context) {}
