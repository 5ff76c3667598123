package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/test/loopback"
)

func TestVerbs(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	hostile := raised("node-1", 1)
	fault := hostile.Data.(event.Fault)
	fault.Message = "evil\x1b[31m\r\nline\u202e"
	hostile.Data = fault
	must(t, p.post(hostile, raised("node-2", 1)))
	for _, test := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"nodes"}, exitProblems, []string{"CLUSTER", "node-1", "node-2"}},
		{[]string{"nodes", "--cluster", "other"}, exitFine, nil},
		{[]string{"faults", "--node", "node-1"}, exitProblems, []string{"Slow", "evil?[31m??line?"}},
		{[]string{"faults", "--severity", "fatal"}, exitFine, nil},
		{[]string{"faults", "-o", "json"}, exitProblems, []string{`"total":2`}},
		{[]string{"events"}, exitFine, []string{"fault.raised.v1", "dns Slow server 1", "node-2"}},
		{[]string{"events", "--after", "1", "-o", "json"}, exitFine, []string{`"next":"2"`}},
		{[]string{"events", "--after", "x"}, exitCouldNotTell, []string{"want an offset"}},
		{[]string{"node", "node-1"}, exitProblems, []string{"Slow", "fault.raised.v1"}},
		{[]string{"node", "node-3"}, exitCouldNotTell, []string{"has never received an event"}},
		{[]string{"report", "daily"}, exitProblems, []string{"PARTIAL", "needs people", "Slow", "evil?[31m??line?", "2 at the end"}},
		{[]string{"report", "daily", "-o", "table", "--date", "today"}, exitProblems, []string{"NEEDS PEOPLE FOR"}},
		{[]string{"report", "weekly", "-o", "json"}, exitProblems, []string{`"period":"weekly"`, `"found":2`}},
		{[]string{"report", "daily", "-o", "html"}, exitFine, []string{"<!doctype html>", p.url + "/events?"}},
		{[]string{"report", "daily", "--date", "2001-01-01"}, exitCouldNotTell, []string{"404", "there are of"}},
		{[]string{"report", "daily", "--date", "soon"}, exitCouldNotTell, []string{"want a day as"}},
		{[]string{"report", "daily", "-o", "text/html"}, exitCouldNotTell, []string{"must be text or table or json or html"}},
		{[]string{"nodes", "-o", "html"}, exitCouldNotTell, []string{"must be text or json"}},
		{[]string{"nodes", "--agent", "other-version"}, exitFine, nil},
		{[]string{"serve", "--timezone", "Europe/Nowhere"}, exitCouldNotTell, []string{"--timezone"}},
		{[]string{"verify"}, exitFine, []string{"offsets 1 to 2"}},
		{[]string{"nodes", "--server", "http://127.0.0.1:1"}, exitCouldNotTell, []string{"refused"}},
		{[]string{"nodes", "-o", "yaml"}, exitCouldNotTell, []string{"must be text or json"}},
		{[]string{"serve", "--listen", "127.0.0.1:0"}, exitCouldNotTell, []string{"in use by another process"}},
		{[]string{"serve", "--listen", "0.0.0.0:0"}, exitCouldNotTell, []string{"needs --tls-cert"}},
		{[]string{"serve", "--listen", ":0"}, exitCouldNotTell, []string{"needs --tls-cert"}},
	} {
		out, code := cli(t, append(test.args, "--dir", dir)...)
		if err := contains(out, test.want...); code != test.code || err != nil {
			t.Errorf("%v: exit code %d, want %d: %v", test.args, code, test.code, err)
		}
		if strings.ContainsAny(out, "\x1b\r") {
			t.Errorf("%v: control characters in %q", test.args, out)
		}
	}
	p.stop(syscall.SIGTERM) // its log is complete
	if strings.Contains(p.log.String(), "evil") {
		t.Errorf("the log repeats what a node said: %s", p.log)
	}
}

// A pod's thirty cgroups are one line, and no name fills the screen.
func TestEventsAreFolded(t *testing.T) {
	item := func(offset uint64, kind, subject, message string) api.Item {
		text, err := json.Marshal(map[string]any{"type": "io.github.nodeagent." + kind, "severity": "info",
			"partitionkey": "n", "subject": subject, "data": map[string]string{"message": message}})
		must(t, err)
		return api.Item{Offset: offset, Event: text}
	}
	id := strings.Repeat("0123456789abcdef", 4)
	var got []string
	for _, row := range folded([]api.Item{
		item(1, "fault.raised.v1", "disk/Readonly/filesystem/%2Fdata", "takes no writes"),
		item(2, "leftover.gone.v1", "leftovers/LeftoverGone/sandbox/"+id, "gone"),
		item(3, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fa", "gone"),
		item(4, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fb", "gone"),
		item(5, "agent.started.v1", "", ""), item(6, "agent.started.v1", "", ""),
		item(7, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/"+strings.Repeat("x", 1000), strings.Repeat("y", 1000)),
	}) {
		cells := strings.Split(row, "\t")
		got = append(got, strings.Join(append(cells[:1], cells[2:]...), "|"))
	}
	x, y := strings.Repeat("x", 1000), strings.Repeat("y", 60)
	want := []string{
		"1|fault.raised.v1|info|n|disk Readonly filesystem /data|takes no writes",
		"2|leftover.gone.v1|info|n|leftovers sandbox 0123456789abc|gone",
		"3|leftover.gone.v1|info|n|leftovers cgroup /a and 1 more|gone",
		"5|agent.started.v1|info|n||", "6|agent.started.v1|info|n||",
		"7|leftover.gone.v1|info|n|leftovers cgroup " + x[:23] + "…" + x[:40] + "|" + y + "…" + y,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Events that a damaged journal lost are a problem for the exit code too.
func TestLostEvents(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "token", strings.Repeat("x", 32))
	for gaps, want := range map[string]int{`{"from":"1","to":"2","reason":"damaged"}`: exitProblems, "": exitFine} {
		center := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"events":[],"gaps":[%s],"next":"2","oldest":"1","newest":"2"}`, gaps)
		}))
		out, code := cli(t, "events", "--dir", dir, "--server", center.URL)
		center.Close()
		if code != want || (gaps != "") != strings.Contains(out, "LOST") {
			t.Errorf("%d: %s", code, out)
		}
	}
}

// A list of nodes has the state of each, and a declared maintenance.
func TestNodesAsText(t *testing.T) {
	list := api.NodeList{Nodes: []model.Summary{{Node: "a", State: "blind"}, {Node: "b", State: "seen",
		Maintenance: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}}
	var text strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&text)
	o := command.Asker{Templates: verbTexts, Functions: functions()}
	must(t, o.Print(cmd, "nodes", list, nil))
	must(t, contains(text.String(), "a     blind  ", "b     seen, maintenance until 2026-01-02T03:04:05Z  "))
}

// A report has leftovers for a hundred ended pods, and the parts that it lacks.
func TestReportAsText(t *testing.T) {
	perHundred := 1.5
	r := report.Report{Missing: []string{"one", "another"}, Leftovers: report.Leftovers{PodsEnded: 200, PerHundred: &perHundred}}
	var text strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&text)
	o := command.Asker{Templates: verbTexts, Functions: functions()}
	must(t, o.Print(cmd, "report", r, nil))
	must(t, contains(text.String(), "NOT COUNTED: one, another\n", "leftovers           1.50  for a hundred of 200 pods"))
}

// A backup of a running center is restored unchanged; the journal gets another UUID.
func TestBackupRestore(t *testing.T) {
	dir, archive, restored := t.TempDir(), filepath.Join(t.TempDir(), "b.tar"), filepath.Join(t.TempDir(), "r")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-1", 2)))
	p.stop(syscall.SIGTERM) // writes a checkpoint
	p = start(t, dir)
	must(t, p.post(raised("node-1", 3)))
	expect(t, exitFine, "", "backup", archive, "--dir", dir)
	expect(t, exitFine, "", "restore", archive, "--dir", restored)
	expect(t, exitCouldNotTell, "there is a journal already", "restore", archive, "--dir", restored)
	before, uuid := p.contents("/v1/faults")
	after, another := start(t, restored).contents("/v1/faults")
	if diff := cmp.Diff(before, after); diff != "" || uuid == another || after["total"] != 3.0 {
		t.Errorf("the journal is %s, was %s\n%s", another, uuid, diff)
	}
	expect(t, exitProblems, `"found":3`, "report", "daily", "-o", "json", "--dir", restored)
	data := read(t, archive)
	flipped := bytes.Clone(data)
	flipped[bytes.Index(data, []byte("SQLite format 3"))+4000] ^= 1
	for name, damaged := range map[string][]byte{"cut off": data[:len(data)/2], "another byte": flipped} {
		must(t, os.WriteFile(archive, damaged, 0o600))
		empty := filepath.Join(t.TempDir(), "e")
		expect(t, exitCouldNotTell, "", "restore", archive, "--dir", empty)
		if _, err := os.Stat(filepath.Join(empty, "journal")); err == nil {
			t.Errorf("%s: a journal was made", name)
		}
	}
}

// startAgent runs the agent's real reporter, which sends to a center.
func startAgent(t *testing.T, p *process, node string, s eventcenter.Settings) (r *eventcenter.Reporter, stop func()) {
	s.Endpoints = []string{p.url + "/v1/events"}
	r = eventcenter.New(eventcenter.Config{Settings: s, Node: node, Boot: "b", Version: "v1", Checks: []string{"disk"},
		ReadFile: os.ReadFile})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return r, stop
}

// faults waits until the center has exactly these reasons on the node.
func (p *process) faults(want ...string) {
	p.t.Helper()
	await(p.t, func() error {
		var answer struct {
			Faults []struct{ Reason string }
		}
		err := p.get("/v1/faults?cluster=c&node=n", &answer)
		got := []string{}
		for _, f := range answer.Faults {
			got = append(got, f.Reason)
		}
		return unless(err == nil && slices.Equal(want, got), "faults %v, want %v: %v; log: %s", got, want, err, p.log)
	})
}

// The real agent's reporter and the real center: a fault starts and ends, the center is killed in between, and a
// restarted agent ends faults that it no longer finds.
func TestAgentAndCenter(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "--listen", loopback.Free(t))
	s := eventcenter.Settings{Cluster: "c", TokenFile: filepath.Join(dir, "token")}
	a, stop := startAgent(t, p, "n", s)
	w := reporttest.NewWorld()
	a.Update(w.Run("disk", nil, "DiskReadonly"))
	p.faults("DiskReadonly")
	a.Update(w.Run("disk", nil))
	p.faults()
	p.stop(syscall.SIGKILL)
	a.Update(w.Run("disk", nil, "DiskGone")) // while the center is down
	address := strings.TrimPrefix(p.url, "http://")
	p = start(t, dir, "--listen", address)
	p.faults("DiskGone")
	stop()
	b, _ := startAgent(t, p, "n", s)
	b.Update(finding.State{"disk": {Status: finding.StatusHealthy}}, nil)
	p.faults()
	p.validEvents()
}

// validEvents demands that all events in the journal, of agents and of the center itself, match their schemas.
func (p *process) validEvents() {
	p.t.Helper()
	var answer api.List
	must(p.t, p.get("/v1/events?limit=1000", &answer))
	if len(answer.Events) == 0 {
		p.t.Error("no events")
	}
	for _, e := range answer.Events {
		must(p.t, schematest.Problem(e.Event))
	}
}
