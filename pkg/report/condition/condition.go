// Package condition writes the believed state to the Node's status, as conditions. It writes only conditions of
// configured checks, removes only those that it wrote itself, and never touches another writer's.
package condition

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Node is the part of the apiserver that the reporter needs. Both calls end when their context does.
type Node interface {
	// NodeConditions reads the conditions of this node; called once, before the first write.
	NodeConditions(ctx context.Context) ([]corev1.NodeCondition, error)
	// PatchNodeStatus sends a strategic merge patch of the Node's status and asks for no more than metadata in the
	// answer.
	PatchNodeStatus(ctx context.Context, patch []byte) error
}

// Config configures the conditions. Only Node and Conditions are required.
type Config struct {
	Name       string // of the reporter; "condition" unless set
	Node       Node
	Conditions map[string]finding.Condition // by check
	Vocabulary Vocabulary

	// Store keeps which conditions are ours and when they last changed. Nil: none is removed after a restart.
	Store report.Store
	// Started is when this agent started. It distinguishes the first observation of a tracker without memory from a
	// changed status.
	Started finding.Timestamp

	// start-up writes and others that are not urgent are spread at random within it; zero: DefaultSpread, negative:
	// none
	Spread  time.Duration
	Grace   time.Duration // time for first conclusive observations; zero: DefaultGrace
	Refresh time.Duration // interval at which all is written again, give or take a tenth; zero: DefaultRefresh

	// Encode makes the patch that writes all conditions and deletes the removed ones. Nil: the patch of nodes/status.
	Encode func(conditions []corev1.NodeCondition, removed []string, at metav1.Time) ([]byte, error)

	// Owner is set if the target is an object that the Node owns, and the agent cannot read it. It takes the UID of the
	// Node and reports whether it is a new one. During a fault everything is sent again every report.CompareFaulty:
	// this restores a deleted object, and does not change an existing one.
	Owner func(uid types.UID) (another bool)
	// Moved returns when a condition changed to a status, from the other reporter that writes the same conditions. May
	// be nil.
	Moved func(name string, status corev1.ConditionStatus) (time.Time, bool)

	Observer report.Observer
	Log      *slog.Logger
	Rand     func() float64 // nil: math/rand/v2
}

// The defaults of Config.
const (
	DefaultSpread  = 2 * time.Minute
	DefaultGrace   = 30 * time.Second
	DefaultRefresh = time.Hour
)

// requestLimit is the time of one request.
const requestLimit = 15 * time.Second

// Reporter keeps the Node's conditions in line with the believed state.
type Reporter struct {
	config  Config
	kinds   []*kind
	byName  map[string]*kind
	behind  *report.WriteBehind
	changed chan struct{} // size 1: signals a change, without its content
	backoff report.Backoff

	mu        sync.Mutex // guards all below
	verdicts  map[string]report.Verdict
	ledger    *ledger
	pace      pace
	graceEnd  time.Time
	shown     map[string]corev1.NodeCondition // our conditions on the Node, as far as we know
	uncertain bool                            // a patch failed: it may have been applied nevertheless
	bad       bool                            // there is a fault
	sent      metav1.Time                     // heartbeat of the last write
	sight     sight
}

// New returns a reporter. The grace for first observations begins now.
func New(c Config) *Reporter {
	c = c.withDefaults()
	r := &Reporter{
		config: c, kinds: kinds(c.Conditions, c.Vocabulary), byName: map[string]*kind{},
		behind: report.NewWriteBehind(c.Store, c.Log), changed: make(chan struct{}, 1),
		backoff:  report.Backoff{Rand: c.Rand},
		verdicts: map[string]report.Verdict{}, ledger: newLedger(c.Started), graceEnd: time.Now().Add(c.Grace),
		pace: pace{refresh: c.Refresh, spread: c.Spread, rand: c.Rand}, shown: map[string]corev1.NodeCondition{},
	}
	for _, k := range r.kinds {
		r.byName[k.name] = k
	}
	r.ledger.restore(c.Store, c.Log)
	r.pace.start(time.Now())
	return r
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "condition")
	if c.Encode == nil {
		c.Encode = encode
	}
	c.Spread = max(cmp.Or(c.Spread, DefaultSpread), 0)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.Refresh = cmp.Or(c.Refresh, DefaultRefresh)
	if c.Started.IsZero() {
		c.Started.Wall = time.Now()
	}
	c.Observer = cmp.Or[report.Observer](c.Observer, report.Unobserved{})
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Name identifies the reporter in logs and metrics.
func (r *Reporter) Name() string { return r.config.Name }

// Update takes the believed state. It notes every state, even one never written: a status that changed and changed back
// has a new transition time.
func (r *Reporter) Update(state finding.State, _ []finding.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	changed := false
	for _, k := range r.kinds {
		v := k.evaluate(state)
		if v.Since.IsZero() {
			v.Since = r.config.Started
		}
		changed = changed || v != r.verdicts[k.name]
		r.verdicts[k.name] = v
		if !r.held(k, v, now) {
			r.ledger.observe(k, v)
		}
	}
	if changed {
		report.Wake(r.changed)
	}
}
