package main

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

var (
	withMeasure = flag.Bool("measure", false, "measure the center with the connections of a fleet and a history of 30 days")
	brief       = flag.Bool("brief", false, "with -measure: a third of the history and less time: less exact")
)

const (
	fleetNodes   = 10_000
	fleetCluster = "bench"
	historyDays  = 30
)

// TestMeasure measures SQLite alone, and then the center with the connections of a fleet and a history of 30 days: its
// start, answers, connections and loads. It prints a table, and fails only if a request does.
func TestMeasure(t *testing.T) {
	need.Flag(t, *withMeasure, "-measure: takes five minutes")
	perDay, span := 3, time.Minute // events of each node and day in the history; how long each load lasts
	if *brief {
		perDay, span = 1, 15*time.Second
	}
	base, err := os.MkdirTemp("/var/lib", "natest-bench-") // /tmp may be in memory
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(base)) })
	binary, dir := buildWith(t, base, change{}), filepath.Join(base, "center")
	fmt.Printf("%s, %d cores, which the nodes share with the center; %s\n\n| | goal | measured |\n|---|---|---|\n",
		runtime.GOARCH, runtime.NumCPU(), time.Now().Format(time.DateOnly))
	row("SQLite alone: a commit of one row, p50 / p99", "", "%s", sqliteAlone(t, filepath.Join(base, "alone.db")))
	events := makeHistory(t, dir, perDay)
	begin := func() (*process, time.Duration) {
		begun := time.Now()
		p := startAs(t, binary, dir, "--keep", "2160h")
		p.await(http.StatusOK)
		return p, time.Since(begun)
	}
	p, took := begin()
	row(fmt.Sprintf("start without a checkpoint (%d nodes, 30 days, %d events)", fleetNodes, events), "", "%s",
		took.Round(time.Millisecond))
	p.settled()
	p.stop(syscall.SIGTERM)
	p, took = begin()
	row("start", "2 s", "%s", took.Round(time.Millisecond))
	p.atRest()
	p.loads(span)
}

// row prints a line of the table.
func row(what, goal, format string, args ...any) {
	fmt.Printf("| %s | %s | %s |\n", what, goal, fmt.Sprintf(format, args...))
}

// settled waits until the reports have counted the history, and the files of past days are sealed. A history that is
// made at once takes a while.
func (p *process) settled() {
	p.t.Helper()
	await(p.t, func() error {
		logs, _ := filepath.Glob(filepath.Join(p.dir, "journal", "*-wal")) // the pattern is well-formed
		return errors.Join(unless(len(logs) < 2, "not sealed: %v", logs),
			p.has("/v1/reports/daily?date=today", http.StatusOK))
	})
}

// sqliteAlone measures durable commits of one row of 1 KiB in a file.
func sqliteAlone(t *testing.T, name string) figure {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+name+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "CREATE TABLE events(offset INTEGER PRIMARY KEY, event BLOB)")
	var times figure
	for event := make([]byte, 1<<10); err == nil && len(times) < 2000; {
		begun := time.Now()
		_, err = db.ExecContext(t.Context(), "INSERT INTO events(event) VALUES(?)", event)
		times = append(times, time.Since(begun))
	}
	must(t, err)
	return times
}

// atRest measures requests to a center without connected agents.
func (p *process) atRest() {
	p.t.Helper()
	for _, q := range []struct {
		what, goal string
		times      int
		path       string // %d: the number of a node
	}{
		{"one node, newest 100", "10 ms", 200, "/v1/nodes/" + fleetCluster + "/" + nodeName + "?limit=100"},
		{"current faults", "20 ms", 50, "/v1/faults"},
		{"all nodes", "", 20, "/v1/nodes"},
		{"report of yesterday", "1 s", 10, "/v1/reports/daily?date=yesterday"},
		{"report of today", "1 s", 10, "/v1/reports/daily?date=today"},
		{"report of a week", "", 3, "/v1/reports/weekly?date=yesterday"},
	} {
		var took figure
		for i := range q.times {
			path := strings.Replace(q.path, nodeName, fmt.Sprintf(nodeName, i*37%fleetNodes), 1)
			begun := time.Now()
			must(p.t, p.has(path, http.StatusOK))
			took = append(took, time.Since(begun))
		}
		row(q.what+", p50 / p99", q.goal, "%s", took)
	}
	resident, _ := p.usage()
	row("resident memory after these questions", "200 MiB", "%.0f MiB", resident)
}

// usage returns the resident memory of the center in MiB, and its processor time.
func (p *process) usage() (resident float64, cpu time.Duration) {
	p.t.Helper()
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	must(p.t, err)
	stat, err := proc.Stat()
	must(p.t, err)
	return float64(stat.ResidentMemory()) / (1 << 20), time.Duration(stat.CPUTime() * float64(time.Second))
}

// figure summarizes many durations.
type figure []time.Duration

func (f figure) String() string {
	if len(f) == 0 {
		return "none"
	}
	slices.Sort(f)
	return fmt.Sprint(f[len(f)/2].Round(100*time.Microsecond), " / ", f[len(f)*99/100].Round(100*time.Microsecond))
}

// nodeName is the format of the nodes' names.
const nodeName = "node-%05d.example.internal"

// makeHistory fills a center's journal with the last 30 days: for each node snapshots and, every third day, a fault
// that is raised and cleared; on one of twenty nodes it stays.
func makeHistory(t *testing.T, dir string, perDay int) (events int) {
	t.Helper()
	begin := time.Now().AddDate(0, 0, -historyDays)
	now := begin
	must(t, os.MkdirAll(dir, 0o700))
	s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(dir, "journal"), Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }, Keep: 90 * 24 * time.Hour})
	must(t, err)
	defer s.Close()
	for step := range historyDays * perDay {
		for from := 0; from < fleetNodes; from += 1000 {
			now = begin.Add(24 * time.Hour * time.Duration(step*fleetNodes+from) / time.Duration(perDay*fleetNodes))
			batch := make([]journal.Event, 1000)
			for i := range batch {
				batch[i] = pastEvent(t, from+i, step, perDay, now)
			}
			_, err := s.Append(t.Context(), batch)
			must(t, err)
			events += len(batch)
		}
	}
	return events
}

// pastEvent is an event of a node: a change every third day, otherwise a snapshot of its state.
func pastEvent(t *testing.T, n, step, perDay int, now time.Time) journal.Event {
	t.Helper()
	sequence, turn := uint64(step)+1, (step+n)%(3*perDay)
	e := changed(n, sequence, turn != 1 || n%20 == 0, now)
	if turn > 1 {
		state := event.Snapshot{AsOf: event.Sequence(sequence - 1), Of: e.Stream, Part: 1, End: true, Faults: []event.Fault{},
			Leftovers: []event.Activity{}, Unknown: []string{}, PodsEnded: &sequence}
		if n%20 == 0 {
			state.Faults = append(state.Faults, e.Data.(event.Fault))
		}
		e.Type, e.Severity, e.Subject, e.Data = event.NodeSnapshot, finding.Info, event.Subject{}, state
	}
	text, err := e.Encode()
	must(t, err)
	return journal.Event{Source: "/clusters/" + e.Cluster + "/nodes/" + e.Node, ID: e.ID(), Type: string(e.Type),
		Cluster: e.Cluster, Node: e.Node, Severity: string(e.Severity), Check: e.Subject.Check, Reason: e.Subject.Reason,
		Stream: e.Stream, Sequence: sequence, JSON: text}
}

// changed returns a node's change: a fault on a disk is raised or cleared.
func changed(node int, sequence uint64, raised bool, now time.Time) event.Event {
	f := event.Fault{ID: "disk-errors/sda", Check: "disk-errors", Subject: finding.Subject{Kind: "disk", Name: "sda"},
		Severity: finding.Warning, Reason: "DiskErrors", ObservedAt: now, RaisedAt: now,
		Message: "12 of the last 1,000 requests to sda failed: medium error at sector 1234567",
		Facts:   map[string]string{"device": "sda", "errors": "12", "model": "SAMSUNG MZQL23T8HCLS-00A07"}}
	e := event.Event{Type: event.FaultCleared, Cluster: fleetCluster, Node: fmt.Sprintf(nodeName, node), Time: now,
		Severity: f.Severity, Stream: fmt.Sprintf("01K%023d", node), Sequence: sequence, Data: f,
		Subject: event.Subject{Check: f.Check, Reason: f.Reason, Kind: f.Subject.Kind, Name: f.Subject.Name}}
	if raised {
		e.Type = event.FaultRaised
	}
	return e
}

// fleetNode is a simulated node with a connection of its own.
type fleetNode struct {
	process
	number int

	sending  sync.Mutex // held during a request: guards sequence
	sequence uint64
}

// answers are those to requests at a rate.
type answers struct {
	mu     sync.Mutex // guards the fields below
	times  figure
	stored int         // events
	failed map[int]int // requests, by status
}

// note counts an answer, and reports whether the events are stored. Status 0 is no answer.
func (a *answers) note(status, events int, took time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status != http.StatusOK {
		a.failed[status]++
		return false
	}
	a.stored += events
	a.times = append(a.times, took)
	return true
}

// send sends changes of the node in one request, until the center takes them. The delay counts from when they were due.
func (n *fleetNode) send(events int, due time.Time, to *answers) {
	n.sending.Lock()
	defer n.sending.Unlock()
	changes := make([]event.Event, events)
	for i := range changes {
		n.sequence++
		changes[i] = changed(n.number, n.sequence, n.sequence%2 == 1, due)
	}
	body := batch(changes...)
	for n.t.Context().Err() == nil {
		status, _, _ := n.do(http.MethodPost, "/v1/events", event.BatchMediaType, body)
		if to.note(status, events, time.Since(due)) {
			return
		}
		time.Sleep(time.Second)
	}
}

// generate sends requests of this many events at a rate of requests per second, from one node after the other.
func generate(nodes []*fleetNode, events, rate int, span time.Duration) *answers {
	a := &answers{failed: map[int]int{}}
	var sending sync.WaitGroup
	begun := time.Now()
	for i := range int(span.Seconds() * float64(rate)) {
		due := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		sending.Go(func() { nodes[i*7919%len(nodes)].send(events, due, a) })
	}
	sending.Wait()
	return a
}

// loads connects all nodes and sends 1,000 events a second one by one, then 5,000 in batches.
func (p *process) loads(span time.Duration) {
	p.t.Helper()
	nodes := make([]*fleetNode, fleetNodes)
	for i := range nodes {
		nodes[i] = &fleetNode{number: i, sequence: 1 << 32, process: process{t: p.t, dir: p.dir, url: p.url,
			client: &http.Client{Timeout: 10 * time.Second,
				Transport: &http.Transport{MaxConnsPerHost: 1, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10}}}}
	}
	before, _ := p.usage()
	generate(nodes, 1, 1000, fleetNodes*time.Millisecond)
	after, _ := p.usage()
	row("memory for each open connection", "60 KiB", "%.0f KiB; all together %.0f MiB", (after-before)*1024/fleetNodes, after)
	for _, kind := range []struct{ events, rate int }{{1, 1000}, {50, 100}} {
		first, err := p.newest()
		must(p.t, err)
		_, cpuBefore := p.usage()
		a := generate(nodes, kind.events, kind.rate, span)
		last, err := p.newest()
		must(p.t, err)
		resident, cpu := p.usage()
		row(fmt.Sprintf("%d events/s for %s, %d a request, p50 / p99", kind.events*kind.rate, span, kind.events),
			"p99 100 ms", "%s; %d acknowledged, %d lost; failed requests: %v; CPU an event: %.0f µs; %.0f MiB",
			a.times, a.stored, int(first)+a.stored-int(last), a.failed,
			float64((cpu-cpuBefore).Microseconds())/float64(max(1, a.stored)), resident)
	}
}
