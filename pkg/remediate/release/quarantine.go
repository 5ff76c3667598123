package release

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
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

const (
	quarantineGroup  = "quarantine" // in the journal
	quarantineNotice = 24 * time.Hour
	quarantineEvery  = time.Hour // between two sweeps
)

// quarantineClock holds the time of the last sweep.
type quarantineClock struct {
	mu   sync.Mutex // guards last
	last finding.Timestamp
}

// due reports whether a sweep is due, and then records it as done.
func (c *quarantineClock) due(now finding.Timestamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && c.last.Boot == now.Boot && now.SinceBoot-c.last.SinceBoot < quarantineEvery {
		return false
	}
	c.last = now
	return true
}

// sweepAction is the action of a sweep on one entry of the quarantine.
type sweepAction int

const (
	keepEntry   sweepAction = iota
	reportEntry             // report its coming removal
	emptyEntry
)

// older returns an entry with its current age: the time since the last sweep is added, unless the machine was rebooted
// in between. So neither a clock jump nor a powered-off machine makes an entry older.
func older(kept mutate.Kept, now finding.Timestamp) mutate.Kept {
	if kept.Aged.Boot == now.Boot && now.SinceBoot > kept.Aged.SinceBoot {
		kept.Age += now.SinceBoot - kept.Aged.SinceBoot
	}
	kept.Aged = now
	return kept
}

// sweepActionFor decides about an entry. It is removed only if its removal was reported long enough before.
func sweepActionFor(kept mutate.Kept, keep time.Duration) sweepAction {
	notice := min(quarantineNotice, keep/2)
	switch {
	case kept.Foreign != "", keep <= 0:
		return keepEntry
	case kept.Reported && kept.Age >= keep && kept.Age-kept.ReportedAt >= notice:
		return emptyEntry
	case !kept.Reported && kept.Age >= keep-notice:
		return reportEntry
	}
	return keepEntry
}

// sweep updates the age of the entries of the quarantine, reports coming removals, and removes the entries kept long
// enough.
func (r *Runner) sweep(ctx context.Context, opened *lazyJournal) error {
	all, err := r.options.Mutator.Quarantined(ctx)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	var problems []error
	for _, kept := range all {
		if kept.Foreign != "" {
			continue
		}
		if r.KillSwitch() != "" || ctx.Err() != nil {
			break
		}
		if err := r.sweepOne(ctx, older(kept, r.options.Host.Clock()), opened); err != nil {
			if crash := (injectedCrash{}); errors.As(err, &crash) {
				return err
			}
			problems = append(problems, fmt.Errorf("quarantine: %s: %w", kept.Name, err))
		}
	}
	return errors.Join(problems...)
}

// ExpiredQuarantine returns the entries of the quarantine that a sweep would remove now: kept for long enough, and
// reported before. None if releases are not on: then no sweep runs either.
func ExpiredQuarantine(ctx context.Context, o Options) (expired []mutate.Kept, err error) {
	if o.Settings.ModeOf(object.PodDirectory) != On {
		return nil, nil
	}
	all, err := o.Mutator.Quarantined(ctx)
	for _, kept := range all {
		if sweepActionFor(older(kept, o.Host.Clock()), o.Settings.Quarantine.Keep) == emptyEntry {
			expired = append(expired, kept)
		}
	}
	return expired, err
}

// SweepQuarantine runs the hourly sweep now. The caller holds the lock of releases: see Settings.LockNode.
func SweepQuarantine(ctx context.Context, o Options) error {
	if o.Settings.ModeOf(object.PodDirectory) != On {
		return nil
	}
	r := &Runner{options: o, tools: actions.Tools{FaultPoint: o.hit}}
	opened := &lazyJournal{Runner: r}
	defer opened.close()
	return r.sweep(ctx, opened)
}

func (r *Runner) sweepOne(ctx context.Context, kept mutate.Kept, opened *lazyJournal) error {
	keep := r.options.Settings.Quarantine.Keep
	record := Record{
		Group: quarantineGroup, Pod: object.Pod{UID: kept.UID}, Kind: object.PodDirectory,
		ID:       path.Join(r.options.Mutator.QuarantineDir(), kept.Name),
		Identity: object.Identity{File: object.FileID{Device: kept.File.Device, Inode: kept.File.Inode}},
	}
	what := fmt.Sprintf("%s of pod %s (%d bytes), kept for %s", kept.Path, kept.UID, kept.Bytes,
		kept.Age.Round(time.Minute))
	log := r.options.Log.With("entry", record.ID, "pod", kept.UID, "bytes", kept.Bytes, "age", kept.Age)
	switch sweepActionFor(kept, keep) {
	case reportEntry:
		log.Warn("quarantine entry will be removed", "keep", keep)
		record.Event, record.Does = Notice,
			fmt.Sprintf("will be removed from quarantine when it has been kept for %s: %s", keep, what)
		if err := opened.write(record); err != nil {
			return err
		}
		kept.Reported, kept.ReportedAt = true, kept.Age
	case emptyEntry:
		log.Warn("removing quarantine entry")
		record.Event, record.Does = Intent, "remove from quarantine: "+what
		return r.removeEntry(ctx, kept, record, opened)
	}
	return r.options.Mutator.NoteQuarantine(ctx, kept)
}

// removeEntry removes an entry permanently, between its intent and its end in the journal.
func (r *Runner) removeEntry(ctx context.Context, kept mutate.Kept, record Record, opened *lazyJournal) error {
	err := opened.write(record)
	if err == nil {
		err = r.tools.FaultPoint("quarantine: intent")
	}
	if err != nil {
		return err
	}
	failure := r.options.Mutator.EmptyQuarantine(ctx, kept)
	record.Event, record.Does = End, ""
	record.Result, record.Why = resultOfDo(failure)
	if err := opened.write(record); err != nil || failure == nil {
		return err
	}
	return errors.Join(failure, r.options.Mutator.NoteQuarantine(ctx, kept))
}
