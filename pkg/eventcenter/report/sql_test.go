package report

import (
	"database/sql"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

// The numbers of a report again, in plain SQL over the journal's files, without the report's code.
//
//   - words: each event about a fault, with the fault's identity.
//   - late: an agent's event, overtaken by a newer snapshot, a later start, or a later event about the same fault or
//     leftover.
//   - found: an event that a fault is active after one that it is not; ends: how it ended.
const counting = `
CREATE TEMP VIEW words AS SELECT *, event->>'$.data.check' || '|' || (event->>'$.data.subject.kind') || '|' ||
  (event->>'$.data.subject.name') || '|' || coalesce(event->>'$.data.subject.uid','') AS thing,
  event->>'$.data.raisedAt' AS raised, coalesce(event->>'$.data.oneShot', 0) AS oneshot,
  event->>'$.data.severity' AS level, event->>'$.inferredof' AS inferredof, stream <> '' AS ofagent
  FROM ev WHERE type LIKE 'fault.%' OR type LIKE 'leftover.%' OR type = 'action.succeeded.v1';
CREATE TEMP VIEW whole AS SELECT offset, cluster, node, event->>'$.data.asOfStream' AS ofstream,
  CAST(event->>'$.data.asOf' AS INTEGER) AS asof FROM ev WHERE type = 'node.snapshot.v1' AND event->>'$.data.end';
CREATE TEMP VIEW gone AS SELECT offset, cluster, node, id FROM ev WHERE type = 'node.removed.v1';
CREATE TEMP TABLE said AS SELECT w.*, w.ofagent AND (
  EXISTS(SELECT 1 FROM whole s WHERE s.cluster = w.cluster AND s.node = w.node AND s.offset < w.offset
    AND (s.ofstream > w.stream OR s.ofstream = w.stream AND s.asof >= w.sequence)
    AND NOT EXISTS(SELECT 1 FROM gone g WHERE g.node = w.node AND g.offset BETWEEN s.offset AND w.offset))
  OR EXISTS(SELECT 1 FROM ev o WHERE o.node = w.node AND o.stream <> '' AND o.type <> 'node.snapshot.v1'
    AND o.offset < w.offset AND o.stream > w.stream
    AND NOT EXISTS(SELECT 1 FROM gone g WHERE g.node = w.node AND g.offset BETWEEN o.offset AND w.offset))
  OR EXISTS(SELECT 1 FROM words o WHERE o.node = w.node AND o.thing = w.thing AND substr(o.type, 1, 5) = substr(w.type, 1, 5)
    AND o.stream = w.stream AND o.offset < w.offset AND o.sequence > w.sequence)) AS late
  FROM words w;
CREATE INDEX temp.said_thing ON said(node, thing, offset);
CREATE TEMP TABLE live AS SELECT *, lag(type) OVER w AS before, lag(raised) OVER w AS beforeraised,
  lag(oneshot) OVER w AS beforeshot FROM said WHERE type LIKE 'fault.%' AND NOT late
  WINDOW w AS (PARTITION BY cluster, node, thing ORDER BY offset);
CREATE TEMP TABLE found AS SELECT *, (SELECT min(n.offset) FROM live n WHERE n.node = f.node AND n.thing = f.thing
  AND n.offset > f.offset AND (n.type = 'fault.cleared.v1' OR n.raised <> f.raised)) AS ended
  FROM live f WHERE type <> 'fault.cleared.v1'
  AND (before IS NULL OR before = 'fault.cleared.v1' OR beforeshot OR beforeraised <> raised);
CREATE TEMP TABLE ends AS SELECT f.*, e.received AS endreceived,
  CASE WHEN EXISTS(SELECT 1 FROM gone g WHERE g.id = e.inferredof) THEN 'removed'
    WHEN EXISTS(SELECT 1 FROM said a WHERE a.type = 'action.succeeded.v1' AND a.node = f.node AND a.thing = f.thing
      AND a.offset > f.offset AND a.offset < e.offset) THEN 'repaired' ELSE 'cleared' END AS how
  FROM found f JOIN ev e0 ON e0.offset = f.ended JOIN said e ON e.offset = f.ended WHERE NOT f.oneshot;
CREATE TEMP TABLE history AS SELECT * FROM said h WHERE late AND type = 'fault.raised.v1' AND NOT EXISTS(
  SELECT 1 FROM said o WHERE o.node = h.node AND o.thing = h.thing AND o.raised = h.raised
  AND (o.type = 'fault.raised.v1' OR o.type = 'fault.updated.v1' AND NOT o.late) AND o.offset < h.offset);
`

// states gives each node's state between two events, according to the latest events before.
const states = `
CREATE TEMP TABLE points AS SELECT offset, node, received, lead(received) OVER (PARTITION BY node ORDER BY offset) AS until
  FROM ev WHERE node <> '';
CREATE TEMP TABLE spans AS SELECT p.node, p.received AS a, coalesce(p.until, :now) AS b,
  coalesce((SELECT type <> 'node.removed.v1' FROM ev WHERE node = p.node AND offset <= p.offset
    AND (stream <> '' OR type LIKE 'node.%') ORDER BY offset DESC LIMIT 1), 0) AS present,
  coalesce((SELECT type FROM ev WHERE node = p.node AND offset <= p.offset AND type IN ('node.lost.v1',
    'node.blind.v1', 'node.seen.v1', 'node.removed.v1') ORDER BY offset DESC LIMIT 1), '') AS silence,
  coalesce((SELECT type = 'agent.stopping.v1' FROM ev WHERE node = p.node AND offset <= p.offset AND type IN (
    'agent.started.v1', 'agent.stopping.v1', 'node.snapshot.v1', 'node.removed.v1') ORDER BY offset DESC LIMIT 1), 0) AS stopped,
  coalesce((SELECT unixepoch(event->>'$.data.until', 'subsec') * 1000 FROM ev WHERE node = p.node AND offset <= p.offset
    AND type IN ('operator.maintenance.v1', 'node.removed.v1') ORDER BY offset DESC LIMIT 1), 0) AS declared,
  EXISTS(SELECT 1 FROM live l WHERE l.node = p.node AND l.offset <= p.offset AND l.type <> 'fault.cleared.v1'
    AND l.level = 'fatal' AND NOT l.oneshot AND NOT EXISTS(SELECT 1 FROM live m WHERE m.node = l.node AND
    m.thing = l.thing AND m.offset > l.offset AND m.offset <= p.offset)) AS broken
  FROM points p;
`

type database struct {
	testing.TB
	*sql.DB
}

// count opens the files of the journal that the center uses.
func (w *world) count() database {
	w.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	w.must(err)
	db.SetMaxOpenConns(1)
	w.Cleanup(func() { _ = db.Close() })
	d := database{w.TB, db}
	d.do(`CREATE TABLE ev(offset INTEGER PRIMARY KEY, received INTEGER, id TEXT, type TEXT, cluster TEXT, node TEXT,
		stream TEXT, sequence INTEGER, event TEXT)`)
	d.do(`CREATE INDEX ev_node ON ev(node, offset)`)
	files, err := filepath.Glob(filepath.Join(w.dir, "journal", "*.db"))
	w.must(err)
	for _, file := range files {
		d.do(`ATTACH ? AS part`, file)
		d.do(`INSERT INTO ev SELECT offset, received, id, replace(type, 'io.github.nodeagent.', ''), cluster, node, stream,
			sequence, CAST(event AS TEXT) FROM part.events`)
		d.do(`DETACH part`)
	}
	d.do(counting)
	d.do(states, sql.Named("now", w.now.UnixMilli()))
	return d
}

func (d database) do(statement string, args ...any) {
	d.Helper()
	if _, err := d.Exec(statement, args...); err != nil {
		d.Fatalf("%v\n%s", err, statement)
	}
}

// one returns the single number that a query yields.
func (d database) one(query string, args ...any) float64 {
	d.Helper()
	var n sql.NullFloat64
	if err := d.QueryRow(query, args...).Scan(&n); err != nil {
		d.Fatalf("%v\n%s", err, query)
	}
	return n.Float64
}

// compare counts a day again, and reports numbers that differ.
func (d database) compare(r Report, now time.Time) {
	d.Helper()
	span := []any{sql.Named("from", r.From.UnixMilli()), sql.Named("to", min(r.To.UnixMilli(), now.UnixMilli()+1)),
		sql.Named("end", min(r.To.UnixMilli(), now.UnixMilli()))}
	check := func(name string, got float64, query string, args ...any) {
		d.Helper()
		if want := d.one(query, append(args, span...)...); math.Abs(got-want) > 1e-9 {
			d.Errorf("%s: %s is %v, by SQL %v", r.Name, name, got, want)
		}
	}
	in := ` received >= :from AND received < :to`
	open := ` FROM found f LEFT JOIN ends e ON e.offset = f.offset WHERE NOT f.oneshot AND f.received < :to
		AND (e.offset IS NULL OR e.endreceived >= :to)`
	f := r.Faults
	check("found", float64(f.Found), `SELECT (SELECT count(*) FROM found WHERE`+in+`) + (SELECT count(*) FROM history WHERE`+in+`)`)
	check("late", float64(f.Late), `SELECT count(*) FROM history WHERE`+in)
	check("oneShot", float64(f.OneShot), `SELECT count(*) FROM found WHERE oneshot AND`+in)
	for how, got := range map[string]int{"cleared": f.Cleared, "repaired": f.Repaired, "removed": f.Removed} {
		check(how, float64(got), `SELECT count(*) FROM ends WHERE how = :how AND endreceived >= :from AND endreceived < :to`,
			sql.Named("how", how))
	}
	check("open", float64(f.Open), `SELECT count(*)`+open)
	check("open before", float64(f.OpenBefore), `SELECT count(*) FROM found f LEFT JOIN ends e ON e.offset = f.offset
		WHERE NOT f.oneshot AND f.received < :from AND (e.offset IS NULL OR e.endreceived >= :from)`)
	muted := ` coalesce((SELECT unixepoch(m.event->>'$.data.until', 'subsec') * 1000 FROM ev m WHERE m.type = 'operator.muted.v1'
		AND m.node = f.node AND m.received < :to AND m.event->>'$.data.subject.name' = f.event->>'$.data.subject.name'
		AND m.event->>'$.data.check' = f.event->>'$.data.check'
		AND NOT EXISTS(SELECT 1 FROM gone g WHERE g.node = m.node AND g.offset > m.offset AND g.offset < f.offset)
		ORDER BY m.offset DESC LIMIT 1), 0) > :end`
	owned := ` EXISTS(SELECT 1 FROM ev m WHERE m.type = 'operator.acknowledged.v1' AND m.node = f.node AND m.received < :to
		AND m.offset > f.offset AND m.event->>'$.data.subject.name' = f.event->>'$.data.subject.name'
		AND m.event->>'$.data.check' = f.event->>'$.data.check')`
	level := ` (SELECT level FROM live l WHERE l.node = f.node AND l.thing = f.thing AND l.received < :to
		ORDER BY offset DESC LIMIT 1)`
	check("muted", float64(f.Muted), `SELECT count(*)`+open+` AND`+muted)
	check("owned", float64(f.Owned), `SELECT count(*)`+open+` AND NOT`+muted+` AND`+owned)
	check("needs people", float64(f.NeedsPeople), `SELECT count(*)`+open+` AND NOT`+muted+` AND NOT`+owned+
		` AND`+level+` <> 'info'`)
	for _, row := range r.ByFault {
		name := []any{sql.Named("check", row.Check), sql.Named("level", string(row.Severity))}
		same := ` AND event->>'$.data.check' = :check AND level = :level`
		check("found of "+row.Check, float64(row.Found), `SELECT (SELECT count(*) FROM found WHERE`+in+same+
			`) + (SELECT count(*) FROM history WHERE`+in+same+`)`, name...)
		check("ended of "+row.Check, float64(row.Cleared+row.Repaired+row.Removed),
			`SELECT count(*) FROM ends WHERE endreceived >= :from AND endreceived < :to`+same, name...)
	}
	for _, row := range r.ByPool {
		check("found in "+row.Name, float64(row.Found), `SELECT (SELECT count(*) FROM found JOIN place USING(node)
			WHERE pool = :pool AND`+in+`) + (SELECT count(*) FROM history JOIN place USING(node) WHERE pool = :pool AND`+in+`)`,
			sql.Named("pool", row.Name))
	}
	for _, row := range r.ByZone {
		check("open in "+row.Name, float64(row.Open), `SELECT count(*) FROM (SELECT f.node`+open+`) JOIN place USING(node)
			WHERE zone = :zone`, sql.Named("zone", row.Name))
	}
	d.times(r, check)
	d.lengths(r, check)
	for _, k := range r.Leftovers.Kinds {
		check("leftovers "+k.Kind, float64(k.Found), `WITH l AS (SELECT *, lag(type) OVER (PARTITION BY node, thing
			ORDER BY offset) AS was FROM said WHERE type LIKE 'leftover.%' AND NOT late)
			SELECT count(*) FROM l WHERE type = 'leftover.found.v1' AND (was IS NULL OR was <> 'leftover.found.v1')
			AND event->>'$.data.subject.kind' = :kind AND`+in, sql.Named("kind", k.Kind))
	}
	check("pods", float64(r.Leftovers.PodsEnded), `WITH p AS (SELECT node, received, event->>'$.data.podsEnded' AS n,
		event->>'$.data.asOfStream' AS s, offset FROM ev WHERE type = 'node.snapshot.v1' AND n IS NOT NULL),
		q AS (SELECT *, n - coalesce(lag(n) OVER (PARTITION BY node, s ORDER BY offset), 0) AS more FROM p)
		SELECT sum(more) FROM q WHERE`+in)
}

// times compares the availability of each listed node, and of the fleet.
func (d database) times(r Report, check func(string, float64, string, ...any)) {
	clipped := `SELECT node, min(b, :end) - max(a, :from) AS whole, min(max(min(declared, b, :end) - max(a, :from), 0),
		min(b, :end) - max(a, :from)) AS excluded, CASE WHEN silence = 'node.lost.v1' OR broken THEN 'unavailable'
		WHEN silence = 'node.blind.v1' OR stopped THEN 'unknown' ELSE 'available' END AS state
		FROM spans WHERE present AND a < :end AND b > :from`
	for _, row := range r.Worst {
		for state, got := range map[string]int64{"available": row.Time.Available, "unavailable": row.Time.Unavailable,
			"unknown": row.Time.Unknown} {
			check(row.Node+" "+state, float64(got), `SELECT sum(whole - excluded) FROM (`+clipped+`) WHERE node = :node AND
				state = :state`, sql.Named("node", row.Node), sql.Named("state", state))
		}
	}
	share := `SELECT avg(s) FROM (SELECT 1.0 * sum(CASE WHEN state = :state THEN whole - excluded ELSE 0 END) /
		sum(whole - excluded) AS s FROM (` + clipped + `) GROUP BY node HAVING sum(whole - excluded) > 0)`
	for state, got := range map[string]float64{"available": r.Availability.Available,
		"unavailable": r.Availability.Unavailable, "unknown": r.Availability.Unknown} {
		check("share "+state, got, share, sql.Named("state", state))
	}
	check("nodes", float64(r.Availability.Nodes), `SELECT count(*) FROM (SELECT node FROM (`+clipped+`) GROUP BY node HAVING
		sum(whole - excluded) > 0)`)
	check("removed", float64(r.Availability.Removed), `SELECT count(*) FROM ev e WHERE type = 'node.removed.v1' AND
		received >= :from AND received < :to AND (SELECT type FROM ev WHERE node = e.node AND offset < e.offset
		AND (stream <> '' OR type LIKE 'node.%') ORDER BY offset DESC LIMIT 1) <> 'node.removed.v1'`)
}

// lengths compares median and p90.
func (d database) lengths(r Report, check func(string, float64, string, ...any)) {
	cut := func(s string) string {
		return fmt.Sprintf(`CASE WHEN %[1]s < 3600 THEN %[1]s WHEN %[1]s < 172800 THEN %[1]s - %[1]s %% 60
			ELSE %[1]s - %[1]s %% 3600 END`, s)
	}
	clear := `SELECT ` + cut(`((endreceived - received) / 1000)`) + ` AS s FROM ends WHERE how <> 'removed'
		AND endreceived >= :from AND endreceived < :to`
	find := `SELECT ` + cut(`CAST(round((julianday(raised) - julianday(event->>'$.data.observedAt')) * 86400) AS INTEGER)`) +
		` AS s FROM found WHERE received >= :from AND received < :to`
	for name, one := range map[string]struct {
		q     Quantiles
		query string
	}{"clear": {r.Clear, clear}, "find": {r.Find, find}} {
		check(name+" count", float64(one.q.Count), `SELECT count(*) FROM (`+one.query+`)`)
		for percent, got := range map[int]int64{50: one.q.Median, 90: one.q.P90} {
			check(fmt.Sprint(name, percent), float64(got), `SELECT (SELECT s FROM (SELECT s, row_number() OVER (ORDER BY s) AS rank,
				count(*) OVER () AS n FROM (`+one.query+`)) WHERE rank * 100 >= n * :percent ORDER BY rank LIMIT 1)`,
				sql.Named("percent", percent))
		}
	}
}

// place inserts the places of nodes into the database.
func (d database) place(places map[string]model.Place) {
	d.do(`CREATE TEMP TABLE place(node TEXT, pool TEXT, zone TEXT)`)
	for node, p := range places {
		d.do(`INSERT INTO place VALUES(?, ?, ?)`, node, p.Pool, p.Zone)
	}
}
