package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Run sends until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	stop := r.outbox.Start(ctx)
	report.Steps(ctx, r.changed, r.step)
	return stop()
}

// step sends one event, if one is due, and returns when to check again; zero: not before a change.
func (r *Reporter) step(ctx context.Context) time.Time {
	item, next, ok := r.due(time.Now())
	if !ok {
		return next
	}
	if err := r.deliver(ctx, item); err != nil {
		r.failed(ctx, err)
	}
	return time.Now()
}

// due returns the item to send now, or when to check again.
func (r *Reporter) due(now time.Time) (item report.Item, next time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resend(now)
	next = report.Earliest(r.release(now), r.resendAt)
	item, ok = r.outbox.Next()
	if !ok {
		return item, next, false
	}
	if now.Before(r.retryAt) {
		return item, report.Earliest(next, r.retryAt), false
	}
	if !r.send.Take("", now) {
		return item, report.Earliest(next, r.send.Next("", now)), false
	}
	return item, next, true
}

// deliver sends an item, and removes it from the outbox if it has arrived or never can.
func (r *Reporter) deliver(ctx context.Context, item report.Item) error {
	result := report.ResultOK
	var n note
	err := errUnreadable
	if json.Unmarshal(item.Body, &n) == nil {
		err = r.create(ctx, item, n)
	}
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // an earlier attempt arrived, but its answer was lost
	case hopeless(err):
		result = report.ResultRejected
		r.config.Log.Warn("drop a rejected event", "reason", item.Key, "err", err)
	default:
		r.config.Observer.Wrote(r.Name(), report.ResultError, err)
		return fmt.Errorf("create event %s: %w", item.Key, err)
	}
	r.config.Observer.Wrote(r.Name(), result, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.backoff.Failures(); n > 0 {
		r.config.Log.Info("sending events works again", "failures", n)
	}
	r.backoff.Succeeded()
	r.outbox.Remove(item.ID)
	r.reportLost(item)
	r.observe()
	return nil
}

func (r *Reporter) create(ctx context.Context, item report.Item, n note) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return r.config.Sink.CreateEvent(ctx, eventOf(r.config.Node, item, n))
}

// errUnreadable means that a stored item does not contain a note.
var errUnreadable = errors.New("stored event is not readable")

// hopeless reports whether each attempt will fail in the same way. One such event would block all others.
func hopeless(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) ||
		errors.Is(err, errUnreadable)
}

// reportLost reports dropped events as soon as the sink accepts events again.
func (r *Reporter) reportLost(after report.Item) {
	if len(r.lost) == 0 {
		return
	}
	total := 0
	for _, n := range r.lost {
		total += n
	}
	n := note{Reason: droppedReason, Type: typeOf(finding.Warning),
		Message: fmt.Sprintf("%d events could not be delivered and were dropped: %s", total,
			strings.Join(r.lost.Texts(), ", "))}
	r.lost = finding.Counts{}
	r.add(after.ID+"-dropped", finding.Warning, time.Now(), n)
}

// failed decides when to try again. It logs only the first failure in a row.
func (r *Reporter) failed(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return // the agent exits; not a fault of the apiserver
	}
	if r.backoff.Failures() == 0 {
		r.config.Log.Warn("send events failed", "err", err)
	}
	r.retryAt = time.Now().Add(r.backoff.Failed(err))
}

var _ report.Reporter = (*Reporter)(nil)
