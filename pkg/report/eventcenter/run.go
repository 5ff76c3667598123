package eventcenter

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// maxCount and maxSize bound one request, in events and bytes.
	maxCount = 100
	maxSize  = 256 << 10
	// farewell is how long an exiting agent tries to send its last event.
	farewell = 1500 * time.Millisecond
	// gapWait is how long rejected events wait for the event that names them. The center may reject that one, too.
	gapWait = time.Minute
)

// sender is the state of Run.
type sender struct {
	stream   string // of state events: snapshots and agent.alive
	sequence uint64 // within the stream
	mode     event.Mode
	count    int // most events of one request: fewer after the center found one too large
	single   int // events to send in structured mode, because the center refused a batch of so many
	alive    time.Duration
	backoff  report.Backoff

	snapshotAt time.Time // when the next is due: at once after the center was away
	sentAt     time.Time
	retryAt    time.Time
	gapAt      time.Time // no event names lost ones before
}

// Run sends until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	defer r.credentials.close()
	stop := r.outbox.Start(ctx)
	r.load(ctx) // the start event has the size of the backlog, and events of earlier starts go first
	r.reportAgent(event.AgentStarted)
	report.Steps(ctx, r.changed, r.step)
	r.leave(ctx)
	return stop()
}

// load waits for the events of earlier starts, but not for a hung disk.
func (r *Reporter) load(ctx context.Context) {
	limit := time.NewTimer(loadWait)
	defer limit.Stop()
	select {
	case <-ctx.Done():
	case <-limit.C:
	case <-r.outbox.loaded:
	}
}

// reportAgent adds an event about the agent itself.
func (r *Reporter) reportAgent(t event.Type) {
	r.mu.Lock()
	defer r.mu.Unlock()
	self := r.self()
	if t == event.AgentStarted {
		self.Blind = []string{} // no check has run yet; they do not count as blind
	}
	r.add(event.Event{Type: t, Data: self})
}

func (r *Reporter) self() event.Agent {
	return event.Agent{Version: r.config.Version, Configuration: r.config.Configuration,
		LastSequence: event.Sequence(r.outbox.last), LastStream: r.outbox.own, Waiting: r.outbox.Counts().Waiting,
		Blind: append([]string{}, r.unknown...), PodsEnded: r.config.PodsEnded()}
}

// leave sends that the agent ends, unless the center has just failed.
func (r *Reporter) leave(ctx context.Context) {
	r.reportAgent(event.AgentStopping)
	if time.Now().Before(r.retryAt) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	_ = r.sendAll(ctx) // unsent events follow after the next start
}

// step does the due work and returns when to check again.
func (r *Reporter) step(ctx context.Context) time.Time {
	if time.Now().Before(r.retryAt) {
		return r.retryAt
	}
	err := r.sendAll(ctx)
	if ctx.Err() == nil { // after sending: a center that has come back gets everything, even if the clock has jumped ahead
		r.expire()
	}
	if err != nil {
		r.failed(ctx, err)
		return r.retryAt
	}
	due := report.Earliest(r.snapshotDue(), r.sentAt.Add(r.alive))
	if r.outbox.Counts().Lost > 0 {
		due = report.Earliest(due, r.gapAt)
	}
	return due
}

// expire gives up the events that are too old.
func (r *Reporter) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outbox.Expire(time.Now().Add(-maxAge))
	r.observe()
}

func (r *Reporter) sendAll(ctx context.Context) error {
	if err := r.sendChanges(ctx); err != nil {
		return err
	}
	if time.Since(r.sentAt) < r.alive {
		return nil
	}
	r.mu.Lock()
	self := r.self()
	r.mu.Unlock()
	return r.sendState(ctx, event.Event{Type: event.AgentAlive, Data: self})
}

// sendChanges sends the backlog, and after it the snapshot if it is due. In the other order the center would infer
// changes that the backlog then reports, and its followers would mistake old events for new ones.
func (r *Reporter) sendChanges(ctx context.Context) error {
	for {
		batch := r.take()
		switch {
		case len(batch) > 0:
			if err := r.sendBatch(ctx, batch); err != nil {
				return err
			}
		case time.Now().Before(r.snapshotDue()):
			return nil
		default:
			if err := r.sendSnapshot(ctx); err != nil {
				return err
			}
		}
	}
}

// take returns the next batch.
func (r *Reporter) take() []report.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !time.Now().Before(r.gapAt) {
		r.reportLost()
	}
	count := r.count
	if r.modeNow() != event.Batch {
		count = 1
	}
	return r.outbox.Batch(count, maxSize)
}

// sendBatch sends events, and removes those from the outbox that the center has, or will never accept.
func (r *Reporter) sendBatch(ctx context.Context, batch []report.Item) error {
	var bodies [][]byte
	for _, e := range batch {
		bodies = append(bodies, e.Body)
	}
	again, err := r.send(ctx, bodies...)
	switch c := code(err); {
	case again:
	case err == nil:
		r.delivered(batch)
	case c == http.StatusRequestEntityTooLarge && len(batch) > 1:
		r.count = len(batch) / 2
	case isRejected(err):
		r.reject(batch, err)
	default:
		return err
	}
	return nil
}

// modeNow returns the mode of the next request.
func (r *Reporter) modeNow() event.Mode {
	if r.single > 0 && r.mode == event.Batch {
		return event.Structured
	}
	return r.mode
}

// send makes one request. If the center refuses the mode, or a batch without naming an event, it switches to a simpler
// one and returns again.
func (r *Reporter) send(ctx context.Context, bodies ...[]byte) (again bool, err error) {
	mode := r.modeNow()
	m, err := mode.Message(bodies...)
	if err == nil {
		err = r.post(ctx, m)
	}
	if mode == event.Batch && isInvalid(err) && len(rejected(err, len(bodies))) == 0 {
		r.single = len(bodies)
		return true, nil
	}
	if mode != r.mode && (err == nil || isRejected(err)) {
		r.single--
	}
	if next := r.mode.Simpler(); code(err) == http.StatusUnsupportedMediaType && next != "" {
		r.config.Log.Info("the event center refuses this mode: sending in a simpler one", "mode", r.mode, "instead", next)
		r.mode = next
		return true, nil
	}
	return false, err
}

func (r *Reporter) delivered(batch []report.Item) {
	r.succeeded()
	r.count = min(max(r.count, len(batch)*2), maxCount)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outbox.delivered(batch)
	r.observe()
}

// isInvalid reports whether the center finds an event invalid, or one of a batch, or the batch.
func isInvalid(err error) bool {
	return code(err) == http.StatusBadRequest || code(err) == http.StatusUnprocessableEntity
}

// isRejected reports whether the center will never accept the event, or the batch.
func isRejected(err error) bool {
	return isInvalid(err) || code(err) == http.StatusRequestEntityTooLarge
}

// rejected returns the events that the center names, if their places are in the batch.
func rejected(err error, sent int) (named []event.Rejected) {
	if f, ok := errors.AsType[*event.RefusedError](err); ok {
		for _, n := range f.Rejected {
			if n.Index >= 0 && n.Index < sent {
				named = append(named, n)
			}
		}
	}
	return named
}

// reject quarantines the events that the center names, or the only one.
func (r *Reporter) reject(batch []report.Item, err error) {
	named := rejected(err, len(batch))
	if len(named) == 0 {
		named = []event.Rejected{{Reason: report.Text(err.Error(), 200)}}
	}
	r.backoff.Succeeded() // the center answers
	if now := time.Now(); !r.gapAt.After(now) {
		r.gapAt = now.Add(gapWait)
	}
	r.config.Observer.Wrote(r.Name(), report.ResultRejected, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range named {
		e, why := batch[n.Index], report.Text(n.Reason, 200)
		if r.outbox.Has(e.ID) {
			r.config.Log.Warn("set a rejected event aside", "sequence", e.Seq, "reason", why)
			r.outbox.quarantine(e, why)
		}
	}
	r.observe()
}

// sendState sends a snapshot or agent.alive: once, since a newer one replaces it.
func (r *Reporter) sendState(ctx context.Context, e event.Event) error {
	r.sequence++
	body, err := r.from(e, r.sender.stream, r.sequence).Encode()
	for again := err == nil; again; {
		again, err = r.send(ctx, body)
	}
	if isRejected(err) {
		r.config.Observer.Wrote(r.Name(), report.ResultRejected, err)
		r.config.Log.Warn("drop a rejected event", "type", e.Type, "err", err)
		r.sentAt = time.Now()
		return nil // each attempt would fail in the same way
	}
	if err == nil {
		r.succeeded()
	}
	return err
}

func (r *Reporter) succeeded() {
	if n := r.backoff.Failures(); n > 0 {
		r.config.Log.Info("the event center accepts events again", "failures", n)
	}
	r.backoff.Succeeded()
	r.retryAt, r.sentAt = time.Time{}, time.Now()
	r.config.Observer.Wrote(r.Name(), report.ResultOK, nil)
}

// failed decides when to try again. It logs only the first failure in a row.
func (r *Reporter) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the agent exits; not a fault of the center
	}
	r.config.Observer.Wrote(r.Name(), report.ResultError, err)
	if r.backoff.Failures() == 0 {
		r.config.Log.Warn("send events failed", "err", err)
	}
	wait := r.backoff.Failed(err)
	if f, ok := errors.AsType[*event.RefusedError](err); ok {
		wait += f.RetryAfter
	}
	if away(err) {
		r.snapshotAt = time.Now()
	}
	r.retryAt = time.Now().Add(wait)
}
