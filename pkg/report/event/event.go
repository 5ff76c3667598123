// Package event reports changes as Kubernetes Events on the Node. It only creates events, under names that make a
// repeated attempt recognisable, and within a budget for each reason, so that a storm of one reason never hides
// another.
package event

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Sink creates events. The call ends when its context does.
type Sink interface {
	CreateEvent(ctx context.Context, event *corev1.Event) error
}

// Config configures the events. Only Node and Sink are required.
type Config struct {
	Node string // name of this node
	Sink Sink

	Store report.Store // keeps unsent events; nil: a restart loses them
	Limit int          // how many may wait; zero: report.DefaultOutboxLimit

	Burst int           // burst of events of one reason; zero: DefaultBurst
	Every time.Duration // refill interval of the burst; zero: DefaultEvery
	// interval at which present faults are reported again, give or take half; zero: DefaultResend, negative: never
	Resend time.Duration

	Wordings map[string]finding.Wording // by check, if it has another wording

	Observer report.Observer
	Log      *slog.Logger
	Rand     func() float64 // nil: math/rand/v2
}

// The defaults of Config.
const (
	DefaultBurst  = 10
	DefaultEvery  = time.Minute
	DefaultResend = 6 * time.Hour
)

const (
	// sendBurst and sendEvery leave room for the conditions in the client's budget of one request a second (burst 5): a
	// backlog of events must not delay them.
	sendBurst = 3
	sendEvery = 2 * time.Second
	// requestLimit is the time of one request.
	requestLimit = 15 * time.Second
)

// Reporter reports updates as events.
type Reporter struct {
	config  Config
	outbox  *report.Outbox
	changed chan struct{} // size 1: signals a change, without its content
	backoff report.Backoff
	send    *report.Budgets

	mu       sync.Mutex // guards all below, and makes several calls of the outbox one step
	budgets  *report.Budgets
	believed []finding.Believed // present faults, for the resend
	resendAt time.Time
	retryAt  time.Time
	lost     finding.Counts // dropped and not yet reported
}

// New returns a reporter that continues with what an earlier run left in the store.
func New(c Config) *Reporter {
	c = c.withDefaults()
	r := &Reporter{
		config: c, outbox: report.NewOutbox(c.Limit, c.Store, c.Log), changed: make(chan struct{}, 1),
		backoff: report.Backoff{Rand: c.Rand}, send: report.NewBudgets(sendBurst, sendEvery),
		budgets: report.NewBudgets(c.Burst, c.Every), lost: finding.Counts{},
	}
	if c.Resend > 0 {
		r.resendAt = time.Now().Add(r.resendAfter())
	}
	return r
}

func (c Config) withDefaults() Config {
	c.Burst = cmp.Or(max(c.Burst, 0), DefaultBurst)
	c.Every = cmp.Or(max(c.Every, 0), DefaultEvery)
	c.Resend = cmp.Or(c.Resend, DefaultResend)
	c.Observer = cmp.Or[report.Observer](c.Observer, report.Unobserved{})
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Name identifies the reporter in logs and metrics.
func (r *Reporter) Name() string { return "event" }

// Update takes the changes.
func (r *Reporter) Update(state finding.State, updates []finding.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(updates) > 0 || r.believed == nil {
		r.believed = worthRepeating(state)
	}
	for _, u := range updates {
		if n, ok := r.noteOf(u); ok {
			r.add(u.ID, u.Finding.Severity, u.At.Wall, n)
		}
	}
	if len(updates) > 0 {
		r.signal()
	}
}

// Report takes the results of pod releases. The other transitions of leftovers are in the findings of their check, and
// in the log.
func (r *Reporter) Report(activities []finding.Activity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range activities {
		if n, ok := noteOfActivity(a); ok {
			r.add(a.ID, a.Severity, a.At.Wall, n)
			r.signal()
		}
	}
}

// signal wakes Run.
func (r *Reporter) signal() {
	r.observe()
	report.Wake(r.changed)
}

// worthRepeating returns a copy of the findings above info, never nil. Finding holds a map, but an event shows none of
// it.
func worthRepeating(state finding.State) []finding.Believed {
	believed := []finding.Believed{}
	for _, b := range state.Raised() {
		if b.Severity != finding.Info && !b.OneShot {
			b.Facts = nil
			believed = append(believed, b)
		}
	}
	return believed
}

// add adds a note to the outbox: as its own event if the budget of its reason allows it, else aggregated with others of
// its kind.
func (r *Reporter) add(id string, severity finding.Severity, at time.Time, n note) {
	body, err := json.Marshal(n)
	if err != nil || r.outbox.Has(id) { // a note is strings only: it can always be encoded
		return
	}
	waiting, held := r.outbox.Waiting(n.Reason)
	if held != nil {
		held.Count++
		if severity.Compare(held.Severity) < 0 {
			held.Severity = severity
		}
		held.Last, held.Body = at, body
		r.outbox.Replace(*held)
		return
	}
	r.outbox.Add(report.Item{ID: id, Key: n.Reason, Severity: severity, Count: 1, First: at, Last: at, Body: body,
		Held: waiting >= r.config.Burst || !r.budgets.Take(n.Reason, time.Now())})
	for s, count := range r.outbox.TakeDropped() {
		r.lost[s] += count
		r.config.Observer.Dropped(r.Name(), s, count)
	}
}

// release releases aggregated events if the budget of their reason allows one more, and returns when to check again.
func (r *Reporter) release(now time.Time) (next time.Time) {
	for _, held := range r.outbox.Held() {
		if waiting, _ := r.outbox.Waiting(held.Key); waiting >= r.config.Burst {
			continue // earlier ones are still unsent; checked again after each send
		}
		if r.budgets.Take(held.Key, now) {
			held.Held = false
			r.outbox.Replace(held)
			continue
		}
		next = report.Earliest(next, r.budgets.Next(held.Key, now))
	}
	return next
}

// resend reports present faults again: the apiserver keeps an event for an hour, and one may have been lost.
func (r *Reporter) resend(now time.Time) {
	if r.resendAt.IsZero() || now.Before(r.resendAt) {
		return
	}
	r.resendAt = now.Add(r.resendAfter())
	for _, b := range r.believed {
		n := r.noteAgain(b)
		r.add(fmt.Sprintf("%s-again-%d", b.ID, now.Unix()), b.Severity, now, n)
	}
}

func (r *Reporter) resendAfter() time.Duration {
	return r.config.Resend/2 + report.Jitter(r.config.Resend, r.config.Rand)
}

func (r *Reporter) observe() { r.config.Observer.Queued(r.Name(), r.outbox.Len()) }
