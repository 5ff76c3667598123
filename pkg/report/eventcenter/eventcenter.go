// Package eventcenter sends changes to an event center, as CloudEvents over HTTP. Unacknowledged events stay in memory
// and, after a second, in the agent's store. The store is read only at start, and sending never waits for its disk: the
// event may be that the disk is failing.
package eventcenter

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Config configures the reporter. Settings and Node must be set.
type Config struct {
	Settings Settings
	Node     string
	Boot     string // ID of this boot

	Version       string             // of the agent
	Configuration string             // hash of the configuration in force
	Checks        []string           // all checks: those without an observation are unknown
	Leftovers     []finding.Activity // leftovers that earlier runs found and did not see released

	PodsEnded func() *uint64 // pods that ended since the start; may be nil, and return nil: not counted

	Store    report.Store                      // nil: events do not survive a restart
	ReadFile func(name string) ([]byte, error) // CA, token, certificate and key

	Transport http.RoundTripper // nil: a transport by the settings
	Observer  report.Observer
	Log       *slog.Logger
	Rand      func() float64 // nil: math/rand/v2
}

// Reporter sends to an event center.
type Reporter struct {
	config      Config
	credentials *credentials
	changed     chan struct{} // size 1: signals a new event, without its content
	endpoint    atomic.Int64  // index of the one in use

	mu        sync.Mutex // guards all below
	outbox    *outbox
	faults    []event.Fault             // present faults
	leftovers map[string]event.Activity // present leftovers, by kind, name and UID
	unknown   []string                  // unknown checks
	blind     []string                  // unknown checks of the last snapshot: the center keeps their faults open
	learned   time.Time                 // when a snapshot must report checks that became known; zero: none did
	recent    []string                  // IDs of the newest activities: the journal may repeat them

	sender // only for Run
}

// New returns a reporter with a new stream. Run reads the events of earlier starts.
func New(c Config) *Reporter {
	c.Settings.Mode = cmp.Or(c.Settings.Mode, event.Batch)
	c.Observer = cmp.Or[report.Observer](c.Observer, report.Unobserved{})
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.PodsEnded == nil {
		c.PodsEnded = func() *uint64 { return nil }
	}
	now := time.Now()
	r := &Reporter{
		config: c, credentials: &credentials{settings: c.Settings, read: c.ReadFile, fixed: c.Transport},
		changed: make(chan struct{}, 1), leftovers: map[string]event.Activity{},
		unknown: slices.Sorted(slices.Values(c.Checks)),
		sender: sender{stream: newULID(now), mode: c.Settings.Mode, count: maxCount, alive: defaultAlive,
			backoff: report.Backoff{Rand: c.Rand}},
	}
	r.outbox = newOutbox(newULID(now), c.Store, c.Log, r.wake)
	for _, a := range c.Leftovers {
		r.leftovers[leftoverKey(a.Subject)] = event.OfLeftover(a)
	}
	return r
}

// Name identifies the reporter in logs and metrics.
func (r *Reporter) Name() string { return "eventcenter" }

// Update takes the changes.
func (r *Reporter) Update(state finding.State, updates []finding.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(updates) > 0 || r.faults == nil {
		r.believe(state)
	}
	for _, u := range updates {
		if e, ok := event.OfUpdate(u); ok {
			r.add(e)
		}
	}
}

// believe takes the state for snapshots.
func (r *Reporter) believe(state finding.State) {
	r.faults = []event.Fault{}
	for _, b := range state.Raised() {
		if !b.OneShot {
			r.faults = append(r.faults, event.OfBelieved(b))
		}
	}
	r.unknown = r.unknown[:0:0]
	for _, check := range slices.Compact(slices.Sorted(slices.Values(append(state.Checks(), r.config.Checks...)))) {
		if s := state[check]; s == nil || s.Status == finding.StatusUnknown {
			r.unknown = append(r.unknown, check)
		}
	}
	if r.learned.IsZero() && slices.ContainsFunc(r.blind, func(check string) bool { return !slices.Contains(r.unknown, check) }) {
		r.learned = time.Now().Add(learnedAfter)
		r.wake()
	}
}

// Report takes the activities of leftovers.
func (r *Reporter) Report(activities []finding.Activity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range activities {
		switch key := leftoverKey(a.Subject); a.Kind {
		case finding.LeftoverPresent:
			r.leftovers[key] = event.OfLeftover(a)
			continue // not a change: the snapshots contain it
		case finding.LeftoverFound:
			r.leftovers[key] = event.OfLeftover(a)
		case finding.LeftoverReleased, finding.LeftoverGone:
			delete(r.leftovers, key)
		}
		if e, ok := event.OfActivity(a); ok && !r.repeated(a.ID) {
			r.add(e)
		}
	}
}

func leftoverKey(s finding.Subject) string { return s.Kind + "/" + s.UID + "/" + s.Name }

// Evidence takes what the node saw of a pod that starts or ends, and adds the findings of the node and the leftovers of the pod.
func (r *Reporter) Evidence(e event.Evidence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		e.Findings = append(e.Findings, strings.Join([]string{f.Check, f.Reason, f.Subject.Kind, f.Subject.Name}, "/"))
	}
	for _, key := range slices.Sorted(maps.Keys(r.leftovers)) {
		if l := r.leftovers[key]; l.Pod.UID == e.UID {
			e.Leftovers = append(e.Leftovers, l.Subject.Kind+" "+l.Subject.Name)
		}
	}
	r.add(event.OfEvidence(e, time.Now()))
}

// repeated reports whether an activity is among the newest ones already.
func (r *Reporter) repeated(id string) bool {
	if slices.Contains(r.recent, id) {
		return true
	}
	if len(r.recent) >= maxRecent {
		r.recent = slices.Delete(r.recent, 0, maxRecent/2)
	}
	r.recent = append(r.recent, id)
	return false
}

// maxRecent bounds the remembered IDs of activities.
const maxRecent = 200

// add gives an event its place in the stream and queues it.
func (r *Reporter) add(e event.Event) {
	r.put(e)
	if r.outbox.Counts().Lost > maxLost {
		r.reportLost()
	}
	r.observe()
	r.wake()
}

func (r *Reporter) put(e event.Event) {
	e = r.from(e, r.outbox.own, r.outbox.last+1)
	body, err := e.Encode()
	if err != nil { // conversions are bounded: an event can always be encoded
		r.config.Log.Error("encode event failed", "type", e.Type, "err", err)
		return
	}
	r.outbox.add(e.Type, e.Severity, time.Now(), body)
}

// reportLost adds an event that names the dropped events.
func (r *Reporter) reportLost() {
	ranges, named := r.outbox.lost()
	if len(ranges) == 0 {
		return
	}
	r.put(event.Event{Type: event.AgentGap, Severity: finding.Warning, Data: event.Gap{Ranges: ranges}})
	r.outbox.delivered(named)
}

// from adds the sender to an event.
func (r *Reporter) from(e event.Event, stream string, sequence uint64) event.Event {
	e.Cluster, e.Node, e.Stream, e.Sequence = r.config.Settings.Cluster, r.config.Node, stream, sequence
	e.BootID = cmp.Or(e.BootID, r.config.Boot)
	e.Severity = cmp.Or(e.Severity, finding.Info)
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	return e
}

func (r *Reporter) wake() { report.Wake(r.changed) }

func (r *Reporter) observe() {
	r.config.Observer.Queued(r.Name(), r.outbox.Counts().Waiting)
	for severity, n := range r.outbox.TakeDropped() {
		r.config.Observer.Dropped(r.Name(), severity, n)
	}
}

// Stats are figures for people that an Observer does not get.
type Stats struct {
	Endpoint    string // in use, or tried first
	Quarantined int    // events that the center will never accept; kept
	Bytes       int    // of the waiting events
}

// Stats returns the current figures.
func (r *Reporter) Stats() Stats {
	counts := r.outbox.Counts()
	return Stats{r.config.Settings.Endpoints[r.endpoint.Load()], counts.Held, counts.Bytes}
}

var _ report.ActivityReporter = (*Reporter)(nil)
