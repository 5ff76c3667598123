// Package taint keeps new pods off a node that cannot serve them: during a fatal fault the Node has one taint of ours,
// with the reason as its value. It changes only entries of its own key, removes only its own taint, and changes nothing
// while another controller repairs or replaces the node. It evicts no pods: the effect is never NoExecute.
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

// Node is the part of the apiserver that the reporter needs. All calls end when their context does.
type Node interface {
	// GetNode reads the Node of this node.
	GetNode(ctx context.Context) (*corev1.Node, error)
	// PatchNode sends a JSON merge patch of the Node. With dryRun the apiserver checks it and does not store it.
	PatchNode(ctx context.Context, patch []byte, dryRun bool) error
}

// Budget limits how many nodes have a taint that keeps pods away (NoSchedule). All calls end when their context does.
type Budget interface {
	// Hold takes or renews this node's part of the budget, and returns whether it has one, and when to call again.
	Hold(ctx context.Context) (held bool, again time.Duration, err error)
	// Release returns it.
	Release(ctx context.Context) error
}

// Mode is whether taints are set.
type Mode string

// The modes.
const (
	Off    Mode = "off"     // removes a taint from before
	DryRun Mode = "dry-run" // logs the intended changes
	On     Mode = "on"
)

// The defaults of Config.
const (
	DefaultKey     = "nodeagent.github.io/unhealthy"
	DefaultHold    = 5 * time.Minute
	DefaultTimeout = 15 * time.Second
)

// Config configures the reporter. Only Node is required.
type Config struct {
	Node   Node
	Mode   Mode
	Key    string        // of the taint; empty: DefaultKey
	Hold   time.Duration // how long all faults must be gone before the taint is removed; zero: DefaultHold
	Prefer []string      // checks whose faults get PreferNoSchedule instead of NoSchedule
	// Budget, if set, must allow the effect NoSchedule, for as long as it lasts. If it is spent, the effect is
	// PreferNoSchedule; if it cannot be asked, the taint does not change.
	Budget Budget
	// Stopped returns the reason why changes are forbidden (the kill switch), or ""; may be nil.
	Stopped func() string
	// Elsewhere returns evidence outside the Node that another controller works on it, or ""; may be nil.
	Elsewhere func(ctx context.Context) (string, error)

	Store    report.Store  // records whether a taint is ours; nil: a taint of an earlier agent counts as ours
	Timeout  time.Duration // of one attempt; zero: DefaultTimeout
	Observer report.Observer
	Log      *slog.Logger
	Rand     func() float64 // nil: math/rand/v2
}

// Reporter keeps the taint in line with the believed state.
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

	// Owned by the goroutine of Run.
	mine        record
	shown       *corev1.Taint // our taint on the Node, as far as known
	known       bool          // whether shown is known
	wroteAt     time.Time
	retryAt     time.Time
	never       string // why this identity cannot set the taint
	lastWarning string // what was logged last, so that it is not repeated
}

// record survives a restart: the checks that asked for the taint on the Node.
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
	_ = store.ForEach(func(key string, value []byte) error { // unreadable: treated as missing
		if key == recordKey {
			_ = json.Unmarshal(value, &r)
		}
		return nil
	})
	return r
}

// Owed reports whether an earlier agent has left a taint that only this package removes.
func Owed(store report.Store) bool { return stored(store).Key != "" }

// Retire removes a taint that the agent of this store has set, and returns its key, if there was one. The agent must
// not be running.
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

// Update takes the believed state.
func (r *Reporter) Update(state finding.State, _ []finding.Update) {
	w := wishOf(state, r.config.Key, r.config.Prefer)
	r.mu.Lock()
	r.wish, r.seen = w, true
	if w.taint != nil {
		r.clear = time.Time{} // Run may see only the next state
	}
	r.mu.Unlock()
	report.Wake(r.changed)
}
