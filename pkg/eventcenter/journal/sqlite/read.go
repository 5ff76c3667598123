package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	readLimit = 5 * time.Second // a longer read would block checkpoints of the write-ahead log
	pageBytes = 4 << 20         // of a page; a single larger event is possible
	scanLimit = 50_000          // offsets that a filtered read scans without an index
	eachLimit = 1000            // rows per query when each row is checked
)

// Read returns a page. It stops after 5 s: with the records read so far, or with an error if there are none.
func (s *Store) Read(ctx context.Context, q journal.Query) (page journal.Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	bounds := s.Bounds()
	end := bounds.Newest // no larger offset is read
	switch {
	case q.Backward:
	case q.After > 0 && q.After+1 < bounds.Oldest:
		return page, &journal.TrimmedError{After: q.After, Oldest: bounds.Oldest}
	case len(q.Filter) > 0 && len(q.Filter[journal.Node]) == 0:
		end = min(end, max(q.After, bounds.Oldest-1)+scanLimit)
	}
	if !q.Backward {
		page.Next = max(q.After, end)
	}
	for p, part := range s.spans(q) {
		part.last = min(part.last, end)
		full, err := s.readPartition(ctx, p, part, &page)
		if _, gone := errors.AsType[*journal.TrimmedError](err); gone && q.Backward {
			break
		}
		if err != nil && (ctx.Err() == nil || len(page.Records) == 0) {
			return journal.Page{}, err
		}
		if full || err != nil { // the time is up, but there are records
			page.Next = page.Records[len(page.Records)-1].Offset
			break
		}
	}
	if n := len(page.Records); q.Backward && n > 0 {
		page.Next = page.Records[n-1].Offset
	}
	if !q.Backward {
		page.Gaps = s.gapsWithin(q.After, page.Next)
	}
	return page, nil
}

// span is the rest of a query for one partition.
type span struct {
	journal.Query
	first, last uint64
}

func (q *span) done() bool { return q.first > q.last }

// pass marks everything up to an offset as done, in the order of the query.
func (q *span) pass(offset uint64) {
	if q.Backward {
		q.last = offset - 1
	} else {
		q.first = offset + 1
	}
}

// edge is the next offset.
func (q *span) edge() uint64 {
	if q.Backward {
		return q.last
	}
	return q.first
}

// spans returns the part of a query for each partition, in its order. They cover all offsets up to the newest.
func (s *Store) spans(q journal.Query) iter.Seq2[*partition, span] {
	s.mu.Lock()
	parts, newest := slices.Clone(s.parts), s.newest
	s.mu.Unlock()
	first, last := q.After+1, newest
	if q.Backward {
		first = q.Stop + 1
		if q.After > 0 {
			last = min(newest, q.After-1)
		}
	}
	return func(yield func(*partition, span) bool) {
		for i := range parts {
			if q.Backward {
				i = len(parts) - 1 - i
			}
			part := span{q, max(first, parts[i].first), last}
			if i+1 < len(parts) {
				part.last = min(last, parts[i+1].first-1)
			}
			if !part.done() && !yield(parts[i], part) {
				return
			}
		}
	}
}

// readPartition adds the records of one partition to the page; full reports whether the page is complete. Unreadable
// offsets become a gap, and reading continues behind them.
func (s *Store) readPartition(ctx context.Context, p *partition, q span, page *journal.Page) (full bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return false, &journal.TrimmedError{After: q.first - 1, Oldest: q.last + 1}
	}
	each := p.readsEach(q.Filter)
	all := each
	for {
		part := s.beforeGap(&q)
		if part.done() {
			return false, nil
		}
		full, err = s.readRows(ctx, p, &part, all, page)
		if q.Backward {
			q.last = min(q.last, part.last)
		} else {
			q.first = max(q.first, part.first)
		}
		switch {
		case full || err != nil && !isDamage(err):
			return full, err
		case err == nil || part.done(): // the step beyond its end met the known damage
		case !all: // the damaged place is unknown
			s.setDamaged(p, err)
			all = true
		default:
			s.setDamaged(p, err)
			all = each
			if err := s.skip(ctx, p, &q, err); err != nil {
				return false, err
			}
		}
	}
}

// maxValues is how many filter values are passed to SQLite.
const maxValues = 1000

// readsEach reports whether each row must be read: without a filter, or if no index helps.
func (p *partition) readsEach(f journal.Filter) bool {
	values := 0
	for _, of := range f {
		values += len(of)
	}
	byNode := len(f[journal.Node]) > 0
	return values == 0 || values > maxValues || byNode && p.noIndex.Load()
}

// beforeGap moves a span out of a gap at its beginning, and returns its part before the next gap.
func (s *Store) beforeGap(q *span) span {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := *q
	for i := range s.gaps {
		if q.Backward {
			i = len(s.gaps) - 1 - i
		}
		g := s.gaps[i]
		switch {
		case g.To < q.first || g.From > q.last:
		case g.From <= q.edge() && g.To >= q.edge():
			if q.pass(g.To); q.Backward {
				q.pass(g.From)
			}
			part = *q
		case q.Backward:
			part.first = g.To + 1
			return part
		default:
			part.last = g.From - 1
			return part
		}
	}
	return part
}

// readRows adds records of a span to the page and moves the span past them: without an error to its end, unless the
// page is full. If all is true it reads each row, and detects missing ones.
func (s *Store) readRows(ctx context.Context, p *partition, q *span, all bool, page *journal.Page) (full bool, err error) {
	for !q.done() {
		limit := q.Limit - len(page.Records)
		if all && len(q.Filter) > 0 {
			limit = eachLimit // few of them may match
		}
		rows, err := p.query(ctx, *q, all, limit)
		if err != nil {
			return false, err
		}
		n := 0
		for ; !full && err == nil && rows.Next(); n++ {
			full, err = s.readRow(p, rows, q, all, page)
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil && !full {
			return false, err
		}
		if full {
			return true, nil
		}
		if n < limit {
			if all {
				s.addGap(journal.Gap{From: q.first, To: q.last, Reason: "missing in " + p.path})
			}
			q.pass(q.first + q.last - q.edge())
		}
	}
	return false, nil
}

// readRow processes one row.
func (s *Store) readRow(p *partition, rows *sql.Rows, q *span, all bool, page *journal.Page) (full bool, err error) {
	r, sound, err := scanRow(rows)
	if err != nil {
		return false, err
	}
	if all && r.Offset != q.edge() {
		missing := journal.Gap{From: q.first, To: r.Offset - 1, Reason: "missing in " + p.path}
		if q.Backward {
			missing.From, missing.To = r.Offset+1, q.last
		}
		s.addGap(missing)
	}
	q.pass(r.Offset)
	if !sound {
		s.addGap(journal.Gap{From: r.Offset, To: r.Offset, Reason: "wrong checksum in " + p.path})
		return false, nil
	}
	if all && !wanted(q.Filter, r) {
		return false, nil
	}
	page.Records, page.Bytes = append(page.Records, r), page.Bytes+len(r.JSON)
	return len(page.Records) >= q.Limit || page.Bytes > pageBytes, nil
}

// wanted reports whether a filter accepts a record.
func wanted(f journal.Filter, r journal.Record) bool {
	for field, accepted := range f {
		value := map[journal.Field]string{journal.Cluster: r.Cluster, journal.Node: r.Node, journal.Type: r.Type,
			journal.Severity: r.Severity, journal.Check: r.Check, journal.Reason: r.Reason}[field]
		if len(accepted) > 0 && !slices.Contains(accepted, value) {
			return false
		}
	}
	return true
}

// skip moves a span to the next readable offset and records the gap. It tries each offset: a B-tree look-up finds rows
// behind a damaged page, a scan does not get past it. It needs p.mu.
func (s *Store) skip(ctx context.Context, p *partition, q *span, cause error) error {
	begin := q.edge()
	defer func() {
		g := journal.Gap{From: begin, To: q.first - 1, Reason: fmt.Sprintf("damaged: %s: %v", p.path, cause)}
		if q.Backward {
			g.From, g.To = q.last+1, begin
		}
		s.addGap(g)
	}()
	if _, err := p.db.ExecContext(ctx, "SELECT offset FROM events LIMIT 0"); err != nil && isDamage(err) {
		q.pass(q.first + q.last - q.edge()) // the schema is damaged: no row can be found
		return nil
	}
	for ; !q.done(); q.pass(q.edge()) {
		rows, err := p.db.QueryContext(ctx, "SELECT "+columns+" FROM events WHERE offset = ?", int64(q.edge()))
		if err == nil {
			found := rows.Next()
			if err = errors.Join(rows.Err(), rows.Close()); found && err == nil {
				return nil
			}
		}
		if err != nil && !isDamage(err) {
			return err
		}
	}
	return nil
}

// query needs mu.
func (p *partition) query(ctx context.Context, q span, all bool, limit int) (*sql.Rows, error) {
	where, args := []string{"offset BETWEEN ? AND ?"}, []any{int64(q.first), int64(min(q.last, math.MaxInt64))}
	for _, field := range journal.Fields() {
		values := q.Filter[field]
		if len(values) == 0 || all {
			continue
		}
		where = append(where, fmt.Sprintf(`"%s" IN (?%s)`, field, strings.Repeat(",?", len(values)-1)))
		for _, value := range values {
			args = append(args, value)
		}
	}
	order, by := "", "NOT INDEXED"
	if q.Backward {
		order = " DESC"
	}
	if len(q.Filter[journal.Node]) > 0 && !all {
		by = "INDEXED BY events_node"
	}
	//nolint:gosec // made of constants; the values are parameters
	text := "SELECT " + columns + " FROM events " + by + " WHERE " + strings.Join(where, " AND ") + " ORDER BY offset" +
		order + " LIMIT ?"
	return p.db.QueryContext(ctx, text, append(args, limit)...)
}
