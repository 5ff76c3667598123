package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expression"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	bookmarkEvery = time.Minute
	commentEvery  = 15 * time.Second
	writeLimit    = 10 * time.Second // a subscriber that reads no data for this long is disconnected
)

// subscriber is an open stream of server-sent events.
type subscriber struct {
	s   *Server
	who web.Identity
	w   io.Writer
	out *http.ResponseController
	q   journal.Query
	// wanted selects the events to send; nil: all
	wanted *expression.Expression

	bookmarks, comments *time.Ticker

	unsure int // failed checks in a row of whether the reader still may read
}

// stream follows the journal until the subscriber disconnects.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, who web.Identity, q journal.Query,
	wanted *expression.Expression) {
	if !s.shares.streams.Take(keyOf(who), 1) {
		s.fail(w, r, notNow(http.StatusTooManyRequests, "too many subscribers, of this reader or of all", 30*time.Second))
		return
	}
	defer s.shares.streams.Give(keyOf(who), 1)
	q.Limit = maxLimit
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	sub := &subscriber{s: s, who: who, w: w, out: http.NewResponseController(w), q: q, wanted: wanted}
	err := sub.follow(r)
	if err != nil && r.Context().Err() == nil {
		s.Log.Info("disconnect a subscriber", "err", err)
	}
}

func (sub *subscriber) follow(r *http.Request) error {
	sub.bookmarks, sub.comments = time.NewTicker(bookmarkEvery), time.NewTicker(commentEvery)
	defer sub.bookmarks.Stop()
	defer sub.comments.Stop()
	err := sub.bookmark()
	for err == nil {
		bounds := sub.s.Journal.Bounds()
		if sub.q.After < bounds.Newest {
			err = sub.page(r, bounds.Newest)
			continue
		}
		select {
		case <-bounds.Changed:
		case <-sub.bookmarks.C:
			err = sub.renew(r)
		case <-sub.comments.C:
			err = sub.send(": \n\n")
		case <-r.Context().Done():
			return nil
		case <-sub.s.Stopping:
			return nil
		}
	}
	if errors.Is(err, errStopping) {
		return nil
	}
	return err
}

var errStopping = errors.New("the center stops")

// due does what is due while the stream is busy with events that wait.
func (sub *subscriber) due(r *http.Request) error {
	select {
	case <-sub.s.Stopping:
		return errStopping
	case <-sub.bookmarks.C:
		return sub.renew(r)
	case <-sub.comments.C:
		return sub.send(": \n\n")
	default:
		return nil
	}
}

// renew sends the position, if the reader still may read.
func (sub *subscriber) renew(r *http.Request) error {
	if err := sub.mayRead(r); err != nil {
		return err
	}
	return sub.bookmark()
}

// maxUnsure is how many minutes a stream continues while the reader's right cannot be checked.
const maxUnsure = 10

// mayRead checks again who reads, and whether they may: a right, a token or a session may have ended.
func (sub *subscriber) mayRead(r *http.Request) error {
	who, err := sub.s.Authenticate(r)
	refusal := web.RefusalOf(err, http.StatusUnauthorized)
	if err == nil {
		refusal = web.Permit(r, sub.s.Authorizer, who, "/v1/events")
	}
	if refusal == nil && keyOf(who) == keyOf(sub.who) {
		sub.unsure = 0
		return nil
	}
	if sub.unsure++; refusal != nil && refusal.RetryWithin > 0 && sub.unsure < maxUnsure {
		return nil
	}
	return fmt.Errorf("%s may no longer read", sub.who.Name)
}

// page sends the next events. Lost events are reported by an event of their own. A page without any for this subscriber
// shows it the position, if more events wait.
func (sub *subscriber) page(r *http.Request, newest uint64) error {
	page, err := sub.s.Journal.Read(r.Context(), sub.q)
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); ok {
		return sub.gap(journal.Gap{From: sub.q.After + 1, To: trimmed.Oldest - 1, Reason: "older than what is kept"})
	}
	if err != nil {
		return err
	}
	gaps, silent := page.Gaps, len(page.Gaps) == 0
	for _, record := range page.Records {
		for ; len(gaps) > 0 && gaps[0].From < record.Offset; gaps = gaps[1:] {
			if err := sub.gap(gaps[0]); err != nil {
				return err
			}
		}
		wanted, err := sub.s.isWanted(r.Context(), sub.who, sub.wanted, record)
		if err == nil && wanted {
			silent, err = false, sub.message("", record.Offset, Item{record.Offset, record.Received, record.Text()})
		}
		if err == nil {
			sub.q.After = record.Offset
			err = sub.due(r)
		}
		if err != nil {
			return err
		}
	}
	for _, gap := range gaps {
		if err := sub.gap(gap); err != nil {
			return err
		}
	}
	sub.q.After = page.Next
	if silent && page.Next < newest {
		if err := sub.bookmark(); err != nil {
			return err
		}
	}
	return sub.due(r)
}

// gap tells this subscriber which events it has missed, and where it finds the state instead.
func (sub *subscriber) gap(g journal.Gap) error {
	sub.q.After = g.To
	return sub.message("event: gap\n", g.To, struct {
		journal.Gap
		Snapshot string `json:"snapshot"`
	}{g, "/v1/nodes"})
}

// bookmark sends the position of the stream, beyond events that the filter left out.
func (sub *subscriber) bookmark() error {
	return sub.message("event: bookmark\n", sub.q.After, map[string]string{"offset": fmt.Sprint(sub.q.After),
		"journal": sub.s.Journal.Bounds().Journal})
}

// message sends an event of the stream: its name is a line, or empty for one of the journal.
func (sub *subscriber) message(name string, id uint64, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return sub.send("id: %d\n%sdata: %s\n\n", id, name, data)
}

func (sub *subscriber) send(format string, args ...any) error {
	if err := sub.limit(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(sub.w, format, args...); err != nil {
		return err
	}
	if err := sub.out.Flush(); err != nil {
		return err
	}
	return sub.limit(time.Time{}) // HTTP/2 would end a quiet stream at its deadline
}

func (sub *subscriber) limit(at time.Time) error {
	if err := sub.out.SetWriteDeadline(at); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
