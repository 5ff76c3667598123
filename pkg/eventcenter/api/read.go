package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expression"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
	aheadWait    = 5 * time.Second // if the journal is behind the cursor
)

// Item is a record as consumers see it.
type Item struct {
	Offset   uint64          `json:"offset,string"`
	Received time.Time       `json:"received"`
	Event    json.RawMessage `json:"event"`
}

func itemsOf(records []journal.Record) []Item {
	items := make([]Item, len(records))
	for i, r := range records {
		items[i] = Item{r.Offset, r.Received, r.Text()}
	}
	return items
}

// List is a page of the journal.
type List struct {
	Events  []Item        `json:"events"`
	Gaps    []journal.Gap `json:"gaps,omitempty"` // lost offsets
	Next    uint64        `json:"next,string"`
	Oldest  uint64        `json:"oldest,string"`
	Newest  uint64        `json:"newest,string"`
	Journal string        `json:"journal"`
}

// events handles GET /v1/events: a page, or with Accept: text/event-stream a stream of new events.
func (s *Server) events(w http.ResponseWriter, r *http.Request, who web.Identity) {
	q, wanted, err := s.queryOf(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		s.stream(w, r, who, q, wanted)
		return
	}
	page, err := s.Journal.Read(r.Context(), q)
	if err != nil {
		s.fail(w, r, s.unread(r, err))
		return
	}
	bounds := s.Journal.Bounds()
	records, err := s.selected(r.Context(), who, wanted, page.Records)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	respond(w, http.StatusOK, List{itemsOf(records), page.Gaps, page.Next, bounds.Oldest, bounds.Newest, bounds.Journal})
}

// Newest returns the newest events that the parameters of a query select, before and after offsets, and the cursor for
// the events before these; 0: there are none.
func (s *Server) Newest(r *http.Request, values url.Values, limit int) (events []Item, before uint64, err error) {
	filter, err := filterOf(values)
	from, err1 := offsetOf("before", values.Get("before"))
	after, err2 := offsetOf("after", values.Get("after"))
	if err := cmp.Or(err, err1, err2); err != nil {
		return nil, 0, err
	}
	page, err := s.Journal.Read(r.Context(), journal.Query{After: from, Limit: limit, Backward: true,
		Filter: filter, Stop: after})
	if err != nil {
		return nil, 0, s.unread(r, err)
	}
	records := page.Records
	if i := slices.IndexFunc(records, func(r journal.Record) bool { return r.Offset <= after }); i >= 0 {
		records = records[:i]
	}
	if len(records) == limit {
		before = page.Next
	}
	return itemsOf(records), before, nil
}

// queryOf reads the parameters, and refuses a cursor that leads nowhere. Last-Event-ID takes precedence over after. The
// expression is nil if there is none.
func (s *Server) queryOf(r *http.Request) (q journal.Query, wanted *expression.Expression, err error) {
	values, bounds := r.URL.Query(), s.Journal.Bounds()
	// a filter with a typo would pass everything
	if err := Only(values, "after", "limit", "journal", "cluster", "node", "type", "severity", "check", "reason", "cel"); err != nil {
		return q, nil, err
	}
	if q.Limit, err = limitOf(values, defaultLimit, maxLimit); err != nil {
		return q, nil, err
	}
	if q.After, err = offsetOf("after", cmp.Or(r.Header.Get("Last-Event-ID"), values.Get("after"))); err != nil {
		return q, nil, err
	}
	if q.Filter, err = filterOf(values); err != nil {
		return q, nil, err
	}
	if text := values.Get("cel"); text != "" {
		if wanted, err = expression.Compile(text); err != nil {
			return q, nil, refused(http.StatusBadRequest, "cel: "+quote(err))
		}
	}
	switch id := values.Get("journal"); {
	case id != "" && id != bounds.Journal:
		return q, nil, errOtherJournal
	case q.After > 0 && q.After+1 < bounds.Oldest:
		return q, nil, &journal.TrimmedError{After: q.After, Oldest: bounds.Oldest}
	case !s.reached(r.Context(), q.After):
		return q, nil, notNow(http.StatusServiceUnavailable, fmt.Sprintf("offset %d is not here yet", q.After), 10*time.Second)
	}
	return q, wanted, nil
}

var errOtherJournal = errors.New("this cursor is of another journal")

// selected returns the records for which an expression is true; nil: all.
func (s *Server) selected(ctx context.Context, who web.Identity, wanted *expression.Expression, records []journal.Record) (
	kept []journal.Record, err error) {
	for _, r := range records {
		match, err := s.isWanted(ctx, who, wanted, r)
		if err != nil { // the reader has gone
			return nil, notNow(http.StatusServiceUnavailable, "too many expressions of this reader", 10*time.Second)
		}
		if match {
			kept = append(kept, r)
		}
	}
	return kept, nil
}

// isWanted reports whether an expression is true of a record; nil: it is. Evaluation errors are counted. A reader whose
// expressions take more than their share of the processor waits.
func (s *Server) isWanted(ctx context.Context, who web.Identity, wanted *expression.Expression, r journal.Record) (
	bool, error) {
	if wanted == nil {
		return true, nil
	}
	begun := time.Now()
	match, err := wanted.Matches(r)
	if err != nil {
		s.metrics.expressions.Inc()
	}
	return match, s.shares.compute.Wait(ctx, keyOf(who), max(1, int(time.Since(begun).Microseconds())))
}

// reached waits briefly until the journal has an offset: this replica may be behind the one that returned it.
func (s *Server) reached(ctx context.Context, offset uint64) bool {
	timeout := time.NewTimer(aheadWait)
	defer timeout.Stop()
	for {
		bounds := s.Journal.Bounds()
		if bounds.Newest >= offset {
			return true
		}
		select {
		case <-bounds.Changed:
		case <-timeout.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func offsetOf(name, text string) (uint64, error) {
	offset, err := strconv.ParseUint(cmp.Or(text, "0"), 10, 63)
	if err != nil {
		return 0, refused(http.StatusBadRequest, fmt.Sprintf("%s %.40q: want an offset, in decimal digits", name, text))
	}
	return offset, nil
}

func limitOf(values url.Values, standard, most int) (int, error) {
	text := values.Get("limit")
	if text == "" {
		return standard, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > most {
		return 0, refused(http.StatusBadRequest, fmt.Sprintf("limit %.40q: want a number from 1 to %d", text, most))
	}
	return limit, nil
}

// maxValues is the maximum number of values for one field of a filter.
const maxValues = 100

func filterOf(values url.Values) (journal.Filter, error) {
	filter := journal.Filter{}
	for _, field := range journal.Fields() {
		wanted := values[string(field)]
		if len(wanted) > maxValues {
			return nil, refused(http.StatusBadRequest, fmt.Sprintf("%s: %d values, %d are possible", field, len(wanted), maxValues))
		}
		if len(wanted) > 0 {
			filter[field] = wanted
		}
	}
	return filter, nil
}
