// Package taint keeps new pods off a node that cannot serve them: while a fatal fault is believed, the Node has one
// taint of ours, with the reason as its value. It changes entries of its own key only, takes off only what it has set,
// and never while somebody else repairs or replaces the node. Nothing is evicted: the effect is never NoExecute.
package taint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Node is what the reporter needs of the apiserver. All calls end when their context does.
type Node interface {
	// GetNode reads the Node of this node.
	GetNode(ctx context.Context) (*corev1.Node, error)
	// PatchNode sends a JSON merge patch of the Node. With dryRun everything is checked and nothing is stored.
	PatchNode(ctx context.Context, patch []byte, dryRun bool) error
}

// Budget limits how many nodes have a taint that keeps pods away (NoSchedule). All calls end when their context does.
type Budget interface {
	// Hold takes this node's part of it, or keeps it, and returns whether there is one, and when to call it again.
	Hold(ctx context.Context) (held bool, again time.Duration, err error)
	// Release gives it back.
	Release(ctx context.Context) error
}

// Mode is whether taints are set.
type Mode string

// The modes.
const (
	Off    Mode = "off"     // a taint that was set before is taken off
	DryRun Mode = "dry-run" // what would be done is logged
	On     Mode = "on"
)

// The defaults of Config.
const (
	DefaultKey     = "nodeagent.github.io/unhealthy"
	DefaultHold    = 5 * time.Minute
	DefaultTimeout = 15 * time.Second
)

// Config configures the reporter. All but Node may be left out.
type Config struct {
	Node   Node
	Mode   Mode
	Key    string        // of the taint; empty: DefaultKey
	Hold   time.Duration // how long all faults must have been gone before it is taken off; zero: DefaultHold
	Prefer []string      // checks whose faults only lower the node's worth: PreferNoSchedule instead of NoSchedule
	// Budget, where set, is asked before the effect is NoSchedule, and as long as it is. Where it is spent the effect is
	// PreferNoSchedule; where it cannot be asked, nothing is changed.
	Budget Budget
	// Stopped returns why nothing may be done (the kill switch), or ""; may be nil.
	Stopped func() string
	// Elsewhere returns what shows, elsewhere than on the Node, that somebody else works on it, or ""; may be nil.
	Elsewhere func(ctx context.Context) (string, error)

	Store    report.Store  // keeps whether a taint is ours; nil: a taint of an earlier agent counts as ours
	Timeout  time.Duration // of one attempt; zero: DefaultTimeout
	Observer report.Observer
	Log      *slog.Logger
	Rand     func() float64 // nil: math/rand/v2
}

// Reporter keeps the taint as what is believed.
type Reporter struct {
	config  Config
	behind  *report.WriteBehind
	changed chan struct{} // size 1
	backoff report.Backoff

	mu      sync.Mutex // guards all up to the next comment
	wish    wish
	seen    bool      // a state was taken over
	trouble string    // why the taint is not what is believed, or never can be: see Trouble
	clear   time.Time // since when nothing asks for a taint and all that has asked for it is known to be well

	sight sight

	// Of the goroutine that runs.
	mine    record
	shown   *corev1.Taint // ours on the Node, as far as is known
	known   bool          // shown is
	wroteAt time.Time
	retryAt time.Time
	never   string // why this identity cannot set the taint
	told    string // what was logged last, so that it is not repeated
}

// record is what survives a restart: which checks have asked for the taint on the Node.
type record struct {
	Key    string   `json:"key"`
	Checks []string `json:"checks"`
}

const recordKey = "taint"

// New returns a reporter.
func New(c Config) *Reporter {
	c.Key = cmp.Or(c.Key, DefaultKey)
	c.Hold = cmp.Or(c.Hold, DefaultHold)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Observer = cmp.Or[report.Observer](c.Observer, report.Unobserved{})
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Reporter{
		config: c, behind: report.NewWriteBehind(c.Store, c.Log), changed: make(chan struct{}, 1),
		backoff: report.Backoff{Rand: c.Rand}, mine: stored(c.Store),
	}
}

// stored returns the record of an earlier agent.
func stored(store report.Store) record {
	var r record
	if store == nil {
		return r
	}
	_ = store.ForEach(func(key string, value []byte) error { // unreadable: as if there were none
		if key == recordKey {
			_ = json.Unmarshal(value, &r)
		}
		return nil
	})
	return r
}

// Owed reports whether an earlier agent has left a taint that only this package takes off.
func Owed(store report.Store) bool { return stored(store).Key != "" }

// Retire takes off a taint that the agent of this store has set, and returns its key, if there was one. No agent may
// run.
func Retire(ctx context.Context, node Node, store report.Store) ([]string, error) {
	mine := stored(store)
	if mine.Key == "" {
		return nil, nil
	}
	r := New(Config{Node: node, Mode: Off, Key: mine.Key, Store: store})
	blocked, _, err := r.attempt(ctx)
	if err != nil || blocked != "" {
		return nil, fmt.Errorf("take off taint %s: %w", mine.Key, cmp.Or(err, errors.New(blocked)))
	}
	return []string{mine.Key}, store.Delete(recordKey)
}

// Trouble returns why the taint of this node is left as it is, or why this identity can never set it; empty: nothing is
// known to be in the way.
func (r *Reporter) Trouble() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble
}

func (r *Reporter) inTheWay(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = why
}

// Name identifies the reporter in logs and metrics.
func (r *Reporter) Name() string { return "taint" }

// Update takes over what is believed.
func (r *Reporter) Update(state finding.State, _ []finding.Update) {
	w := wishOf(state, r.config.Key, r.config.Prefer)
	r.mu.Lock()
	r.wish, r.seen = w, true
	if w.taint != nil {
		r.clear = time.Time{} // the next state may overtake this one
	}
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default: // it is awake already
	}
}
