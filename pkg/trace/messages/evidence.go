package messages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	page = 500
	back = 5000 // events before the start that are read again: evidence about open acts may be among them
)

// Reader follows the events of one cluster. It keeps its place over outages of the center.
type Reader struct {
	Center  *client.Client
	Cluster string
	Take    func(e event.Evidence, node string, now time.Time) bool

	journal string // whose offset after is
	after   uint64
}

// Read reads all new events. It must be called regularly.
func (r *Reader) Read(ctx context.Context, _ time.Time) (err error) {
	for more := true; more && err == nil; {
		more, err = r.read(ctx)
	}
	return err
}

// read reads a page; at first, it finds the place to start. more reports whether another page is there.
func (r *Reader) read(ctx context.Context) (more bool, err error) {
	begins, query := r.journal == "", url.Values{"limit": {"1"}}
	if !begins {
		query = url.Values{"type": {string(event.PodEvidence)}, "cluster": {r.Cluster}, "journal": {r.journal}, "limit": {strconv.Itoa(page)},
			"after": {strconv.FormatUint(r.after, 10)}}
	}
	var answer struct {
		Events                []struct{ Event json.RawMessage }
		Next, Newest, Journal string
	}
	if err = r.Center.Get(ctx, limit, "/v1/events?"+query.Encode(), &answer); err != nil {
		if refused, ok := errors.AsType[*client.RefusedError](err); ok && refused.Status == http.StatusGone {
			r.journal = "" // the events are no longer kept, or the journal is another one
		}
		return false, err
	}
	if begins {
		newest, err := strconv.ParseUint(answer.Newest, 10, 64)
		if err != nil {
			return false, err
		}
		if r.journal = answer.Journal; r.after > newest { // of an earlier journal
			r.after = 0
		}
		r.after = max(r.after, newest-min(newest, back))
		return true, nil
	}
	now := time.Now()
	for _, item := range answer.Events {
		e, err := event.Decode(item.Event)
		data, ok := e.Data.(event.Evidence)
		if err != nil || !ok || e.Cluster != r.Cluster {
			continue // of a newer agent
		}
		r.Take(data, e.Node, now)
	}
	next, err := strconv.ParseUint(answer.Next, 10, 64)
	more, r.after = next > r.after && len(answer.Events) > 0, max(r.after, next)
	return more, err
}
