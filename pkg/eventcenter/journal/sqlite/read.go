package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	readLimit = 5 * time.Second // a longer read would block checkpoints of the write-ahead log
	pageBytes = 4 << 20         // of a page; a single larger event is possible
	scanLimit = 50_000          // offsets that a forward read with a filter scans without an index
	eachLimit = 1000            // rows per query when each row is checked
)

// Read returns a page. It stops after 5 s: with the records read so far, or with an error if there are none.
func (s *Store) Read(ctx context.Context, q journal.Query) (journal.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return s.read(ctx, q)
}

func (s *Store) read(ctx context.Context, q journal.Query) (page journal.Page, err error) {
	bounds := s.Bounds()
	end := bounds.Newest // no larger offset is read
	switch {
	case q.Backward && q.After > 0:
		end = min(end, q.After-1)
	case q.Backward:
	case q.After > 0 && q.After+1 < bounds.Oldest:
		return page, &journal.TrimmedError{After: q.After, Oldest: bounds.Oldest}
	case len(q.Filter) > 0 && len(q.Filter[journal.Node]) == 0:
		end = min(end, max(q.After, bounds.Oldest-1)+scanLimit)
	}
	if !q.Backward {
		page.Next = max(q.After, end)
	}
	for p, part := range s.spans(q, end) {
		full, err := s.readPartition(ctx, p, &part, &page)
		if _, gone := errors.AsType[*journal.TrimmedError](err); gone && q.Backward {
			break
		}
		if err != nil && (ctx.Err() == nil || len(page.Records) == 0) {
			return journal.Page{}, err
		}
		if full || err != nil { // the time is up, but there are records
			page.Next = uint64(part.next - 1)
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

// span is the rest of a query for one partition: the offsets from next to last, both included, in the order of the query.
type span struct {
	journal.Query
	next, last, step int64
}

func (q *span) done() bool { return (q.last-q.next)*q.step < 0 }

// pass moves the span to an offset. The offsets that it leaves are a gap, if the reason says so.
func (s *Store) pass(q *span, to int64, reason string) {
	if reason != "" && to != q.next {
		before := to - q.step
		s.addGap(journal.Gap{From: uint64(min(q.next, before)), To: uint64(max(q.next, before)), Reason: reason})
	}
	q.next = to
}

// spans returns the part of a query for each partition, in its order, up to the end.
func (s *Store) spans(q journal.Query, end uint64) iter.Seq2[*partition, span] {
	parts, first := s.partitions(), q.After+1
	if q.Backward {
		first = q.Stop + 1
	}
	return func(yield func(*partition, span) bool) {
		for i := range parts {
			if q.Backward {
				i = len(parts) - 1 - i
			}
			from, to, step := int64(max(first, parts[i].first)), int64(end), int64(1)
			if i+1 < len(parts) {
				to = min(to, int64(parts[i+1].first-1))
			}
			if from > to {
				continue
			}
			if q.Backward {
				from, to, step = to, from, -1
			}
			if !yield(parts[i], span{q, from, to, step}) {
				return
			}
		}
	}
}

// readPartition adds the records of one partition to the page, and moves the span past them; full reports whether the
// page is complete. Unreadable offsets become a gap, and reading continues behind them.
func (s *Store) readPartition(ctx context.Context, p *partition, q *span, page *journal.Page) (full bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return false, &journal.TrimmedError{After: uint64(q.next - 1), Oldest: uint64(q.last + 1)}
	}
	always := p.readsAll(q.Filter)
	all := always
	for {
		part := *q
		if all && len(q.Filter) > 0 && !q.Backward {
			part.last = min(q.last, q.next-1+scanLimit)
		}
		full, err = s.readRows(ctx, p, &part, all, page)
		q.next = part.next
		if full || err == nil {
			return full || !q.done(), nil
		}
		if !isDamage(err) {
			return false, err
		}
		s.setUnwritable(p, err)
		if !all { // the damaged place is unknown: the rows before it are read one by one
			all = true
			continue
		}
		all = always
		if err := s.skip(ctx, p, q, err); err != nil {
			return false, err
		}
	}
}

// maxValues is how many filter values are passed to SQLite.
const maxValues = 1000

// readsAll reports whether each row must be read: without a filter, with a too long one, or if the index lacks rows.
func (p *partition) readsAll(f journal.Filter) bool {
	values := 0
	for _, of := range f {
		values += len(of)
	}
	return values == 0 || values > maxValues || len(f[journal.Node]) > 0 && p.noIndex.Load()
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
			s.pass(q, q.last+q.step, missing(p, all))
		}
	}
	return false, nil
}

// missing is the reason of a gap of rows that are not there, if each row is read.
func missing(p *partition, all bool) string {
	if !all {
		return ""
	}
	return "missing in " + p.path
}

// readRow processes one row.
func (s *Store) readRow(p *partition, rows *sql.Rows, q *span, all bool, page *journal.Page) (full bool, err error) {
	r, sound, err := scanRow(rows)
	if err != nil {
		return false, err
	}
	s.pass(q, int64(r.Offset), missing(p, all))
	if !sound {
		s.pass(q, q.next+q.step, "wrong checksum in "+p.path)
		return false, nil
	}
	s.pass(q, q.next+q.step, "")
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

// triedEach begins the reason of a gap each of whose offsets was looked up.
const triedEach = "damaged"

// skip moves a span to the next readable offset and records the gap. It tries each offset that is in no known gap: a
// B-tree look-up finds rows behind a damaged page, a scan does not get past it. It needs p.mu.
func (s *Store) skip(ctx context.Context, p *partition, q *span, cause error) error {
	next, reason := *q, triedEach
	defer func() { s.pass(q, next.next, fmt.Sprintf("%s: %s: %v", reason, p.path, cause)) }()
	if _, err := p.db.ExecContext(ctx, "SELECT offset FROM events LIMIT 0"); err != nil && isDamage(err) {
		next.next, reason = next.last+next.step, "damaged schema" // no row can be found
		return nil
	}
	for ; !next.done(); next.next += next.step {
		if g, known := s.gapAt(uint64(next.next)); known && strings.HasPrefix(g.Reason, triedEach+":") {
			next.next = min(int64(g.To), next.last)
			if q.Backward {
				next.next = max(int64(g.From), next.last)
			}
			continue
		}
		rows, err := p.db.QueryContext(ctx, "SELECT "+columns+" FROM events WHERE offset = ?", next.next)
		if err == nil {
			found := rows.Next()
			if err = errors.Join(rows.Err(), rows.Close()); found && err == nil {
				return nil
			}
		}
		if err == nil {
			err = ctx.Err() // the driver may report an interrupted look-up as one that finds nothing
		}
		if err != nil && !isDamage(err) {
			return err
		}
	}
	return nil
}

// query needs mu.
func (p *partition) query(ctx context.Context, q span, all bool, limit int) (*sql.Rows, error) {
	where, args := []string{"offset BETWEEN ? AND ?"}, []any{min(q.next, q.last), max(q.next, q.last)}
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
