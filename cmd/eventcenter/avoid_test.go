package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// The scheduler extender of docs/subscribe.md works unchanged: it filters nodes with a fatal fault, only of its own
// cluster, and none if the center is away.
func TestSubscribeAvoid(t *testing.T) {
	need.Program(t, "go")
	dir := built(t, 2, "extender")
	p := start(t, t.TempDir())
	for i, node := range []string{"node-1", "node-2"} {
		e := raised(node, 1)
		e.Cluster = []string{"c", "other"}[i]
		e.Severity, e.Data = finding.Fatal, event.Fault{ID: "x", Check: "disk", Reason: "Dead", Severity: finding.Fatal,
			Subject: finding.Subject{Kind: "disk", Name: "sda"}, RaisedAt: time.Now(), ObservedAt: time.Now()}
		must(t, p.post(e))
	}
	address := loopback.Free(t)
	log, _ := background(t, dir, "extender", "CENTER="+p.url, "TOKEN="+p.token(), "CLUSTER=c", "LISTEN="+address)
	type result struct {
		NodeNames   []string
		FailedNodes map[string]string
	}
	filter := func() (got result, err error) {
		body := []byte(`{"Pod":{},"Nodes":null,"NodeNames":["node-1","node-2","node-3"]}`)
		answer, err := http.Post("http://"+address+"/filter", "application/json", bytes.NewReader(body)) // a test
		if err != nil {
			return got, err
		}
		defer answer.Body.Close()
		return got, json.NewDecoder(answer.Body).Decode(&got)
	}
	awaits := func(what string, want result) {
		t.Helper()
		var got result
		var err error
		if !eventually(patience, func() bool { got, err = filter(); return err == nil && cmp.Equal(want, got) }) {
			t.Errorf("%s: %+v, %v\n%s", what, got, err, log)
		}
	}
	awaits("a fatal fault", result{[]string{"node-2", "node-3"}, map[string]string{"node-1": "[{disk Dead disk/sda}]"}})
	p.stop(syscall.SIGKILL)
	awaits("no center", result{[]string{"node-1", "node-2", "node-3"}, map[string]string{}})
}
