package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/loopback"
)

// agent is the agent's real reporter, sending to a center.
type agent struct {
	*eventcenter.Reporter
	stop func()
}

func startAgent(t *testing.T, p *process) *agent {
	r := eventcenter.New(eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: []string{p.url + "/v1/events"}, Cluster: "c",
			TokenFile: filepath.Join(p.dir, "token")},
		Node: "n", Boot: "b", Version: "v1", Checks: []string{"disk"}, ReadFile: os.ReadFile,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	a := &agent{Reporter: r, stop: func() { cancel(); <-done }}
	t.Cleanup(cancel)
	return a
}

// faults waits until the center has exactly these reasons on the node.
func (p *process) faults(want ...string) {
	p.t.Helper()
	var got []string
	if !eventually(patience, func() bool {
		var answer struct {
			Faults []struct{ Reason string }
		}
		_, body, err := p.do("GET", "/v1/faults?cluster=c&node=n", "", nil)
		got = nil
		if err == nil && json.Unmarshal(body, &answer) == nil {
			for _, f := range answer.Faults {
				got = append(got, f.Reason)
			}
		}
		return err == nil && fmt.Sprint(got) == fmt.Sprint(want)
	}) {
		p.t.Fatalf("faults %v, want %v; log: %s", got, want, p.log)
	}
}

// The real agent's reporter and the real center: a fault starts and ends, the center is killed in between, and a
// restarted agent ends faults that it no longer finds.
func TestAgentAndCenter(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "--listen", loopback.Free(t))
	a, w := startAgent(t, p), reporttest.NewWorld()
	a.Update(w.Run("disk", nil, "DiskReadonly"))
	p.faults("DiskReadonly")
	a.Update(w.Run("disk", nil))
	p.faults()
	p.stop(syscall.SIGKILL)
	a.Update(w.Run("disk", nil, "DiskGone")) // while the center is down
	address := strings.TrimPrefix(p.url, "http://")
	p = start(t, dir, "--listen", address)
	p.faults("DiskGone")
	a.stop()
	b := startAgent(t, p)
	b.Update(finding.State{"disk": {Status: finding.StatusHealthy}}, nil)
	p.faults()
	p.validEvents()
}

// validEvents demands that all events in the journal, of agents and of the center itself, match their schemas.
func (p *process) validEvents() {
	p.t.Helper()
	var answer api.List
	_, body, err := p.do("GET", "/v1/events?limit=1000", "", nil)
	if err != nil || json.Unmarshal(body, &answer) != nil || len(answer.Events) == 0 {
		p.t.Fatalf("%v: %s", err, body)
	}
	for _, e := range answer.Events {
		if err := schematest.Problem(e.Event); err != nil {
			p.t.Error(err)
		}
	}
}
