package release

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
)

// QuarantineState is the content of the quarantine.
type QuarantineState struct {
	Dir      string        `json:"dir"`
	Bytes    uint64        `json:"bytes"`
	MaxBytes uint64        `json:"maxBytes"`
	Entries  int           `json:"entries"`
	Oldest   time.Duration `json:"oldest"`  // age of the agent's oldest entry, as observed
	Due      int           `json:"due"`     // entries that will be removed within a day
	Foreign  int           `json:"foreign"` // entries that the agent did not create and does not remove
}

// Quarantine returns the current state of the quarantine.
func (r *Runner) Quarantine(ctx context.Context) (QuarantineState, error) {
	state := QuarantineState{Dir: r.options.Mutator.QuarantineDir(), MaxBytes: r.options.Settings.Quarantine.MaxBytes}
	all, err := r.options.Mutator.Quarantined(ctx)
	if err != nil {
		return state, fmt.Errorf("quarantine: %w", err)
	}
	for _, kept := range all {
		state.Entries++
		state.Bytes = mutate.AddBytes(state.Bytes, kept.Bytes)
		switch {
		case kept.Foreign != "":
			state.Foreign++
		case kept.Reported:
			state.Due++
		}
		state.Oldest = max(state.Oldest, kept.Age)
	}
	return state, nil
}
