package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	readLimit = 5 * time.Second // a longer read would keep the write-ahead log from being emptied
	pageBytes = 4 << 20         // of a page; one event beyond it is possible
	scanLimit = 50_000          // offsets that a filtered read without an index goes through
)

// Read returns a page. It ends after 5 s: with what it has, or with an error where it has nothing.
func (s *Store) Read(ctx context.Context, q journal.Query) (journal.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	s.mu.Lock()
	parts, newest, oldest := slices.Clone(s.parts), s.newest, s.oldest()
	var page journal.Page
	recent := false
	if !q.Backward && q.After+1 >= oldest {
		page, recent = s.tail.read(q)
	}
	s.mu.Unlock()
	switch {
	case recent:
		return page, nil
	case q.Backward:
		return s.backward(ctx, q, parts)
	case q.After > 0 && q.After+1 < oldest:
		return journal.Page{}, &journal.TrimmedError{After: q.After, Oldest: oldest}
	}
	end := newest
	if len(q.Filter) > 0 && len(q.Filter[journal.Node]) == 0 {
		end = min(newest, max(q.After, oldest-1)+scanLimit)
	}
	page, err := s.forward(ctx, q, parts, end)
	if err != nil {
		return journal.Page{}, err
	}
	page.Gaps = s.gapsWithin(q.After, page.Next)
	return page, nil
}

// forward reads the oldest first, up to an offset.
func (s *Store) forward(ctx context.Context, q journal.Query, parts []*partition, end uint64) (journal.Page, error) {
	page := journal.Page{Next: max(q.After, end)}
	for i, p := range parts {
		last := end
		if i+1 < len(parts) {
			last = min(end, parts[i+1].first-1)
		}
		if last <= q.After || p.first > end {
			continue
		}
		full, err := s.readPartition(ctx, p, span{q, max(q.After, p.first-1), last}, &page)
		if err != nil && (ctx.Err() == nil || len(page.Records) == 0) {
			return page, err
		}
		if full || err != nil { // at the limit of time with what there is
			page.Next = page.Records[len(page.Records)-1].Offset
			break
		}
	}
	return page, nil
}

// span is the part of a query that one partition answers: offsets beyond after, up to last.
type span struct {
	journal.Query
	after, last uint64
}

// readPartition adds the records of one partition to the page; full is whether no more is wanted.
func (s *Store) readPartition(ctx context.Context, p *partition, q span, page *journal.Page) (full bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return false, &journal.TrimmedError{After: q.after, Oldest: q.last + 1}
	}
	at := q.after // all up to it is dealt with
	for offsets, failed := range p.chosen(ctx, q, q.Filter[journal.Node]) {
		if err = failed; err == nil {
			at, full, err = s.readRows(ctx, p, q, offsets, at, page)
		}
		if full || err != nil {
			break
		}
	}
	if err != nil && isDamage(err) && q.Backward {
		return full, nil // a read forward notes what of it cannot be read
	}
	if err != nil && isDamage(err) {
		s.addGap(journal.Gap{From: at + 1, To: q.last, Reason: fmt.Sprintf("damaged: %s: %v", p.path, err)})
		err = nil
	}
	return full, err
}

// readRows adds records to the page: any, or of some offsets. at is up to where all is dealt with.
func (s *Store) readRows(ctx context.Context, p *partition, q span, offsets []uint64, at uint64, page *journal.Page) (
	next uint64, full bool, err error) {
	rows, err := p.query(ctx, q, offsets, q.Limit-len(page.Records))
	if err != nil {
		return at, false, err
	}
	defer rows.Close()
	for rows.Next() {
		r, sound, err := scanRow(rows)
		if err != nil {
			return at, false, err
		}
		if len(q.Filter) == 0 && !q.Backward && r.Offset != at+1 {
			s.addGap(journal.Gap{From: at + 1, To: r.Offset - 1, Reason: "missing in " + p.path})
		}
		at = r.Offset
		if !sound {
			s.addGap(journal.Gap{From: at, To: at, Reason: "wrong checksum in " + p.path})
			continue
		}
		page.Records, page.Bytes = append(page.Records, r), page.Bytes+len(r.JSON)
		if page.Bytes > pageBytes {
			return at, true, nil
		}
	}
	return at, len(page.Records) >= q.Limit, rows.Err()
}

// query needs mu.
func (p *partition) query(ctx context.Context, q span, offsets []uint64, limit int) (*sql.Rows, error) {
	where, args := []string{"offset > ?", "offset <= ?"}, []any{int64(q.after), int64(min(q.last, math.MaxInt64))}
	if offsets != nil {
		where, args = []string{"offset IN (SELECT value FROM json_each(?))"}, []any{listed(offsets)}
	}
	for _, field := range journal.Fields() {
		values := q.Filter[field]
		if len(values) == 0 {
			continue
		}
		where = append(where, fmt.Sprintf(`"%s" IN (?%s)`, field, strings.Repeat(",?", len(values)-1)))
		for _, value := range values {
			args = append(args, value)
		}
	}
	order := ""
	if q.Backward {
		order = " DESC"
	}
	//nolint:gosec // made of constants; the values are parameters
	text := "SELECT " + columns + " FROM events WHERE " + strings.Join(where, " AND ") + " ORDER BY offset" + order +
		" LIMIT ?"
	return p.rows(ctx, text, append(args, limit)...)
}

// rows needs mu, until they are closed.
func (p *partition) rows(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	statement, err := p.reader(ctx, text)
	switch {
	case err != nil:
		return nil, err
	case statement == nil:
		return p.db.QueryContext(ctx, text, args...)
	}
	return statement.QueryContext(ctx, args...)
}

// maxAsked bounds the statements that a partition keeps: a filter may name any number of values.
const maxAsked = 12

// reader returns a statement that is kept, since a page of one node asks all files the same, and to parse it takes
// longer than to run it. Nil: there are too many. It needs mu.
func (p *partition) reader(ctx context.Context, text string) (*sql.Stmt, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	statement := p.asked[text]
	if statement != nil || len(p.asked) >= maxAsked {
		return statement, nil
	}
	statement, err := p.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if p.asked == nil {
		p.asked = statements{}
	}
	p.asked[text] = statement
	return statement, nil
}

// backward reads the newest first.
func (s *Store) backward(ctx context.Context, q journal.Query, parts []*partition) (journal.Page, error) {
	before := q.After
	if before == 0 {
		before = math.MaxInt64
	}
	var page journal.Page
	for _, p := range slices.Backward(parts) {
		if p.first >= before {
			continue
		}
		if before-1 <= q.Stop {
			break
		}
		full, err := s.readPartition(ctx, p, span{q, max(p.first-1, q.Stop), before - 1}, &page)
		if _, gone := errors.AsType[*journal.TrimmedError](err); err != nil && !gone {
			return journal.Page{}, err
		}
		if full {
			break
		}
	}
	if n := len(page.Records); n > 0 {
		page.Next = page.Records[n-1].Offset
	}
	return page, nil
}

// addGap notes what cannot be read, once.
func (s *Store) addGap(g journal.Gap) {
	if g.From > g.To {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.gaps {
		if known.From <= g.From && known.To >= g.To {
			return
		}
	}
	s.gaps = append(s.gaps, g)
	s.Log.Error("a part of the journal cannot be read", "from", g.From, "to", g.To, "reason", g.Reason)
}

// gapsWithin returns what lies beyond after, up to next.
func (s *Store) gapsWithin(after, next uint64) (found []journal.Gap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gaps {
		if g.To > after && g.From <= next {
			g.From, g.To = max(g.From, after+1), min(g.To, next)
			found = append(found, g)
		}
	}
	slices.SortFunc(found, func(a, b journal.Gap) int { return cmp.Compare(a.From, b.From) })
	return found
}
