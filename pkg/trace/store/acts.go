package store

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
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
	Key       string          `json:"-"` // of the act
}

// rows visits verdicts. evidence is an expression; where is the rest of the query.
func rows(ctx context.Context, dbs []*sql.DB, evidence, where string, args []any, visit func(Row)) error {
	query := `SELECT key, uid, act, namespace, name, node, owner, outcome, why, class, first, reason, at, judged, "user", stages, ` +
		evidence + ` FROM acts` + where
	return each(ctx, dbs, query, args, func(found *sql.Rows) error {
		var r Row
		var at moment
		err := found.Scan(&r.Key, &r.UID, &r.Act, &r.Namespace, &r.Name, &r.Node, &r.Owner, &r.Outcome, &r.Why, &r.Class, &r.First, &r.Reason,
			&at, &r.Judged, &r.User, &r.Stages, document{&r.Evidence})
		r.At, r.Judged, r.User = at.Time, r.Judged/1000, r.User/1000
		visit(r)
		return err
	})
}

const (
	noEvidence = `''`
	evidence   = `coalesce((SELECT evidence.act FROM evidence WHERE evidence.key = acts.key), '')`
)

// Find returns the newest verdicts of a pod, by UID or by namespace and name, with the evidence of misses.
func (s *Store) Find(ctx context.Context, uid, namespace, name string) (found []Row, err error) {
	where, args := ` WHERE namespace = $1 AND name = $2`, []any{namespace, name}
	if uid != "" { // the key begins with the UID, and has an index
		where, args = ` WHERE key > $1 AND key < $1 || 'z' AND uid = $1`, []any{uid}
	}
	where += ` ORDER BY at DESC LIMIT ` + strconv.Itoa(maxRows)
	err = rows(ctx, s.all(), evidence, where, args, func(r Row) { found = append(found, r) })
	return found, err
}

// Misses returns the misses of a window that ends now, the newest first and at most MaxMisses, without their evidence.
func (s *Store) Misses(ctx context.Context, now time.Time, window time.Duration, f Filter) (found []Row, err error) {
	where, args := f.judged(now.Add(-window), now)
	where += ` AND outcome = 'missed' ORDER BY at DESC LIMIT ` + strconv.Itoa(MaxMisses)
	err = rows(ctx, s.since(now.Add(-window)), noEvidence, where, args, func(r Row) { found = append(found, r) })
	slices.SortStableFunc(found, func(a, b Row) int { return b.At.Compare(a.At) })
	return found[:min(len(found), MaxMisses)], err
}

// MissesOf visits the misses of a time, those of deletions with their evidence.
func (s *Store) MissesOf(ctx context.Context, from, to time.Time, namespace string, visit func(Row)) error {
	where, args := Filter{Namespace: namespace}.judged(from.Add(-time.Millisecond), to.Add(-time.Millisecond))
	return rows(ctx, s.since(from), `CASE WHEN act = 'deletion' THEN `+evidence+` ELSE '' END`, where+` AND outcome = 'missed'`, args, visit)
}

// Acts visits the acts of a time, of one namespace if it is not empty.
func (s *Store) Acts(ctx context.Context, from, to time.Time, namespace string, visit func(report.Act)) error {
	at := "at"
	if to.Sub(from) > maxIndexed {
		at = "+at" // without the index
	}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE `+at+` >= $1 AND `+at+` < $2`, moment{from}, moment{to})
	query := `SELECT namespace, act, outcome, class, reason, owner, node, stages, build FROM acts` + where
	return each(ctx, s.since(from), query, args, func(rows *sql.Rows) error {
		var a report.Act
		err := rows.Scan(&a.Namespace, &a.Act, &a.Outcome, &a.Class, &a.Reason, &a.Owner, &a.Node, &a.Stages, &a.Build)
		visit(a)
		return err
	})
}

// Recent returns the newest delivered or missed creations and deletions on nodes, of a window that ends now.
func (s *Store) Recent(ctx context.Context, now time.Time, window time.Duration) (acts []nodefault.Act, err error) {
	where, args := Filter{}.judged(now.Add(-window), now)
	query := `SELECT act, node, namespace, owner, outcome, class, reason, at FROM acts` + where + ` AND node <> ''
 AND act IN ('creation', 'deletion') AND outcome IN ('delivered', 'missed') ORDER BY at DESC LIMIT ` + strconv.Itoa(maxRecent)
	err = each(ctx, s.since(now.Add(-window)), query, args, func(rows *sql.Rows) error {
		var a nodefault.Act
		var at moment
		err := rows.Scan(&a.Act, &a.Node, &a.Namespace, &a.Owner, &a.Outcome, &a.Class, &a.Reason, &at)
		a.At = at.Time
		acts = append(acts, a)
		return err
	})
	return acts, err
}

// Count counts the verdicts of a window that ends now.
func (s *Store) Count(ctx context.Context, now time.Time, window time.Duration, f Filter) ([]sli.Count, error) {
	where, args := f.judged(now.Add(-window), now)
	return counts(ctx, s.since(now.Add(-window)), `count(*) FROM acts`+where, args)
}

// counts adds up verdicts. sum is the rest of the query, from their number on.
func counts(ctx context.Context, dbs []*sql.DB, sum string, args []any) (all []sli.Count, err error) {
	query := `SELECT act, outcome, class, reason, ` + sum + ` GROUP BY act, outcome, class, reason`
	err = each(ctx, dbs, query, args, func(rows *sql.Rows) error {
		var c sli.Count
		err := rows.Scan(&c.Act, &c.Outcome, &c.Class, &c.Reason, &c.N)
		all = append(all, c)
		return err
	})
	return all, err
}
