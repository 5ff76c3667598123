package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	// MaxMisses limits the misses of one answer.
	MaxMisses = 20_000
	// maxRecent limits the compared acts: half an hour of 100 creations and deletions a second.
	maxRecent = 200_000
	maxRows   = 50 // of one pod and file
	// maxIndexed is the longest time whose acts are looked up by index: to read a whole file from begin to end takes less.
	maxIndexed = 6 * time.Hour
)

// Row is a stored verdict.
type Row struct {
	Key       string          `json:"-"` // of the act
	UID       string          `json:"uid"`
	Act       record.Act      `json:"act"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Node      string          `json:"node,omitempty"`
	Owner     string          `json:"owner,omitempty"`
	Outcome   verdict.Outcome `json:"outcome"`
	Why       string          `json:"why,omitempty"`
	Class     string          `json:"class,omitempty"`
	First     string          `json:"reasonFirst,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	At        time.Time       `json:"at"`
	Judged    float64         `json:"judgedSeconds"`
	User      float64         `json:"userSeconds"`
	Stages    string          `json:"stages,omitempty"`
	Evidence  *follow.Act     `json:"-"`
}

// columns are those of a Row without its evidence.
const columns = `key, uid, act, namespace, name, node, owner, outcome, why, class, first, reason, at, judged / 1000.0, "user" / 1000.0, stages`

// evidence selects the evidence of a Row.
const evidence = `coalesce((SELECT evidence.act FROM evidence WHERE evidence.key = acts.key), '')`

// Filter selects verdicts.
type Filter struct {
	Namespace string   // empty: all
	Nodes     []string // none: all
	Reason    string   // of misses; empty: all
	Owner     string   // of misses: UID of the pods' controller, of letters, digits and dashes only; empty: all
}

// narrow adds the filter to a condition.
func (f Filter) narrow(where string, args ...any) (string, []any) {
	add := func(condition string, values ...string) {
		places := make([]string, len(values))
		for i, value := range values {
			args = append(args, value)
			places[i] = "$" + strconv.Itoa(len(args))
		}
		where += " AND " + condition + " (" + strings.Join(places, ", ") + ")"
	}
	if f.Namespace != "" {
		add("namespace IN", f.Namespace)
	}
	if f.Reason != "" {
		add("reason IN", f.Reason)
	}
	if len(f.Nodes) > 0 {
		add("node IN", f.Nodes...)
	}
	if f.Owner != "" {
		add(evidence+" LIKE", `%"ownerUID":"`+f.Owner+`"%`)
	}
	return where, args
}

// each visits the rows of a query in several files. A row is a struct: its fields are the columns, in order. SQLite and
// PostgreSQL both number parameters as $1.
func each[T any](ctx context.Context, dbs []*sql.DB, query string, args []any, visit func(T)) error {
	var row, empty T
	into := fields(reflect.ValueOf(&row).Elem())
	for _, db := range dbs {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		for rows.Next() {
			row = empty
			if err := rows.Scan(into...); err != nil {
				return errors.Join(err, rows.Close())
			}
			visit(row)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// recent visits rows about the acts that a filter selects in a window that ends now. rest continues the query after the condition.
func recent[T any](
	ctx context.Context, s *Store, now time.Time, window time.Duration, f Filter, columns, rest string, visit func(T),
) error {
	begin := now.Add(-window)
	where, args := f.narrow(` WHERE at > $1 AND at <= $2`, begin.UnixMilli(), now.UnixMilli())
	return each(ctx, s.since(begin), `SELECT `+columns+` FROM acts`+where+rest, args, visit)
}

// fields returns where the columns of a row are read into. Times are milliseconds; other structs, pointers and maps are
// documents, except embedded structs.
func fields(row reflect.Value) (into []any) {
	for i := range row.NumField() {
		field := row.Field(i)
		switch at, isTime := field.Addr().Interface().(*time.Time); {
		case isTime:
			into = append(into, moment{at})
		case row.Type().Field(i).Anonymous:
			into = append(into, fields(field)...)
		case slices.Contains([]reflect.Kind{reflect.Struct, reflect.Pointer, reflect.Map}, field.Kind()):
			into = append(into, document{field.Addr().Interface()})
		default:
			into = append(into, field.Addr().Interface())
		}
	}
	return into
}

// moment reads milliseconds. NULL leaves the time unchanged.
type moment struct{ at *time.Time }

// Scan decodes the time.
func (m moment) Scan(stored any) error {
	var ms sql.NullInt64
	err := ms.Scan(stored)
	if err == nil && ms.Valid {
		*m.at = time.UnixMilli(ms.Int64).UTC()
	}
	return err
}

// Find returns the newest verdicts of a pod, by UID or by namespace and name, with the evidence of misses.
func (s *Store) Find(ctx context.Context, uid, namespace, name string) (found []Row, err error) {
	where, args := ` WHERE namespace = $1 AND name = $2`, []any{namespace, name}
	if uid != "" { // the key begins with the UID, and has an index
		where, args = ` WHERE key > $1 AND key < $1 || 'z' AND uid = $1`, []any{uid}
	}
	query := `SELECT ` + columns + `, ` + evidence + ` FROM acts` + where + ` ORDER BY at DESC LIMIT ` + strconv.Itoa(maxRows)
	err = each(ctx, s.all(), query, args, func(r Row) { found = append(found, r) })
	return found, err
}

// Misses returns the misses of a window that ends now, the newest first and at most MaxMisses, without their evidence.
func (s *Store) Misses(ctx context.Context, now time.Time, window time.Duration, f Filter) (found []Row, err error) {
	rest := ` AND outcome = 'missed' ORDER BY at DESC LIMIT ` + strconv.Itoa(MaxMisses)
	err = recent(ctx, s, now, window, f, columns+`, ''`, rest, func(r Row) { found = append(found, r) })
	slices.SortStableFunc(found, func(a, b Row) int { return b.At.Compare(a.At) })
	return found[:min(len(found), MaxMisses)], err
}

// MissesOf visits the misses of a time, those of deletions with their evidence.
func (s *Store) MissesOf(ctx context.Context, from, to time.Time, namespace string, visit func(Row)) error {
	where, args := Filter{Namespace: namespace}.narrow(` WHERE at >= $1 AND at < $2`, from.UnixMilli(), to.UnixMilli())
	query := `SELECT ` + columns + `, CASE WHEN act = 'deletion' THEN ` + evidence + ` ELSE '' END FROM acts` + where + ` AND outcome = 'missed'`
	return each(ctx, s.since(from), query, args, visit)
}

// Acts visits the acts of a time, of one namespace if it is not empty.
func (s *Store) Acts(ctx context.Context, from, to time.Time, namespace string, visit func(sli.Act)) error {
	at := "at"
	if to.Sub(from) > maxIndexed {
		at = "+at" // without the index
	}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE `+at+` >= $1 AND `+at+` < $2`, from.UnixMilli(), to.UnixMilli())
	query := `SELECT namespace, owner, node, '', act, outcome, class, reason, NULL, stages, build FROM acts` + where
	return each(ctx, s.since(from), query, args, visit)
}

// Recent returns the newest delivered or missed creations and deletions on nodes, of a window that ends now.
func (s *Store) Recent(ctx context.Context, now time.Time, window time.Duration) (acts []sli.Act, err error) {
	rest := ` AND node <> '' AND act IN ('creation', 'deletion') AND outcome IN ('delivered', 'missed') ORDER BY at DESC LIMIT `
	err = recent(ctx, s, now, window, Filter{}, `namespace, owner, node, '', act, outcome, class, reason, at, '', 0`,
		rest+strconv.Itoa(maxRecent), func(a sli.Act) { acts = append(acts, a) })
	return acts, err
}

// CountNodes adds the acts of a window that ends now to the named nodes.
func (s *Store) CountNodes(ctx context.Context, now time.Time, window time.Duration, nodes map[string]nodefault.Score) error {
	const sums = `node, count(CASE WHEN outcome = 'delivered' THEN 1 END), count(CASE WHEN outcome = 'missed' AND class <> 'user' THEN 1 END)`
	return recent(ctx, s, now, window, Filter{}, sums, ` GROUP BY node`, func(n struct {
		Node              string
		Delivered, Missed int
	}) {
		if day, known := nodes[n.Node]; known {
			day.Delivered, day.Missed = day.Delivered+n.Delivered, day.Missed+n.Missed
			nodes[n.Node] = day
		}
	})
}

// Count counts the verdicts of a window that ends now.
func (s *Store) Count(ctx context.Context, now time.Time, window time.Duration, f Filter) (all []sli.Count, err error) {
	err = recent(ctx, s, now, window, f, same+`, count(*)`, ` GROUP BY `+same, func(c sli.Count) { all = append(all, c) })
	return all, err
}

// same are the columns of acts that are counted together.
const same = `act, outcome, class, reason`

// Sums counts the verdicts of a time that begins with an hour, from the hours added up and the acts after them.
func (s *Store) Sums(ctx context.Context, from, to time.Time, namespace string) (sums []sli.Count, err error) {
	counted, err := s.counted(ctx, to)
	if err != nil {
		return nil, err
	}
	counted = record.Earlier(counted, to)
	where, args := Filter{Namespace: namespace}.narrow(` WHERE hour >= $1 AND hour < $2`, from.UnixMilli(), counted.UnixMilli())
	err = each(ctx, []*sql.DB{s.hours}, `SELECT `+same+`, sum(n) FROM hours`+where+` GROUP BY `+same, args,
		func(c sli.Count) { sums = append(sums, c) })
	if err != nil || counted.Equal(to) {
		return sums, err
	}
	if counted.Before(from) {
		counted = from
	}
	live, err := s.Count(ctx, to, to.Sub(counted)+time.Millisecond, Filter{Namespace: namespace}) // Count is without its begin
	return append(sums, live...), err
}

// History returns the reasons of misses before a time, and since when there are verdicts; zero: there are none before it.
func (s *Store) History(ctx context.Context, before time.Time, namespace string) (since time.Time, known map[reason.Reason]bool, err error) {
	known = map[reason.Reason]bool{}
	if err := one(ctx, s.hours, `SELECT min(hour) FROM hours WHERE hour < $1`, before.UnixMilli(), moment{&since}); err != nil {
		return since, known, err
	}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE hour < $1 AND outcome = 'missed'`, before.UnixMilli())
	err = each(ctx, []*sql.DB{s.hours}, `SELECT DISTINCT reason FROM hours`+where, args, func(r struct{ Reason reason.Reason }) {
		known[r.Reason] = true
	})
	return since, known, err
}

// Cells returns the times of the stages in a time that begins with an hour, by hour and build. They are without a build if it is
// unknown now.
func (s *Store) Cells(ctx context.Context, from, to time.Time) (cells []report.Cell, err error) {
	err = each(ctx, []*sql.DB{s.hours}, `SELECT hour, stage, cached, coalesce(builds.build, ''), histogram
 FROM stages LEFT JOIN builds ON stages.build = builds.id WHERE hour >= $1 AND hour < $2 AND stages.build <> 0`,
		[]any{from.UnixMilli(), to.UnixMilli()}, func(c report.Cell) { cells = append(cells, c) })
	return cells, err
}

// Week returns the kept report of a week; nil if there is none.
func (s *Store) Week(ctx context.Context, week string) (made *report.Report, err error) {
	err = one(ctx, s.hours, `SELECT report FROM weeks WHERE week = $1`, week, document{&made})
	return made, err
}

// Probes adds up the probes of a window that ends now: one count of each instance, without a minute.
func (s *Store) Probes(ctx context.Context, now time.Time, window time.Duration) (sums []probe.Count, err error) {
	begin := now.Add(-window)
	err = each(ctx, s.since(begin), `SELECT NULL, component, instance, sum(good), sum(bad), sum(blind) FROM probes WHERE minute >= $1
 AND minute <= $2 GROUP BY component, instance`, []any{minuteOf(begin), minuteOf(now)}, func(p probe.Count) {
		same := func(q probe.Count) bool { return q.Component == p.Component && q.Instance == p.Instance }
		if at := slices.IndexFunc(sums, same); at >= 0 { // of another day
			p.Good, p.Bad, p.Blind = p.Good+sums[at].Good, p.Bad+sums[at].Bad, p.Blind+sums[at].Blind
			sums[at] = p
			return
		}
		sums = append(sums, p)
	})
	return sums, err
}

// LastCapacity returns how many creations of a window that ends now were missed because no node had room, and which
// namespaces took the room: the pods that got a node in the hours of these misses and in the hour before each, the
// largest requests of CPU first.
func (s *Store) LastCapacity(ctx context.Context, now time.Time, window time.Duration, namespace string) (misses int, took []report.Placed, err error) {
	begin := now.Add(-window)
	full := map[int64]bool{} // hours
	if err := recent(ctx, s, now, window, Filter{Reason: "CapacityExhausted"}, `at / 3600000, count(*)`,
		` AND act = 'creation' AND outcome = 'missed' GROUP BY at / 3600000`, func(m struct{ Hour, N int64 }) {
			full[m.Hour], full[m.Hour-1] = true, true
			misses += int(m.N)
		}); err != nil {
		return 0, nil, err
	}
	type placed struct {
		Hour int64
		report.Placed
	}
	by := map[string]report.Placed{}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE hour >= $1 AND hour <= $2`, hourOf(begin)-1, hourOf(now))
	err = each(ctx, s.since(begin.Add(-time.Hour)), `SELECT hour, namespace, pods, cpu, bytes FROM placed`+where, args, func(p placed) {
		if sum := by[p.Namespace]; full[p.Hour] {
			by[p.Namespace] = report.Placed{Namespace: p.Namespace, Pods: sum.Pods + p.Pods, CPU: sum.CPU + p.CPU, Bytes: sum.Bytes + p.Bytes}
		}
	})
	return misses, slices.SortedFunc(maps.Values(by), func(a, b report.Placed) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Namespace, b.Namespace))
	}), err
}
