package eventcenter_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// failures counts the requests that failed.
type failures struct{ atomic.Int64 }

func (f *failures) Wrote(_, result string, _ error) {
	if result == report.ResultError {
		f.Add(1)
	}
}

func (f *failures) Dropped(string, finding.Severity, int) {}

func (f *failures) Queued(string, int) {}

// All is sent on one connection. Where the center has ended it meanwhile, another one takes its place and nothing failed;
// one that the center says to end, as after half of a refused request, is not used again.
func TestConnection(t *testing.T) {
	c := &center{}
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(c)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	config, failed := realConfig(t.TempDir(), ""), &failures{}
	config.Settings.Endpoints, config.Observer = []string{server.URL}, failed
	r, world := eventcenter.New(config), reporttest.NewWorld()
	runReal(t, r)
	sent := 0
	send := func(want int64) {
		t.Helper()
		sent++
		r.Update(world.Run("a", nil, fmt.Sprint("Reason", sent)))
		eventually(t, "it does not come", func() bool { return len(c.lines(event.FaultRaised, event.FaultUpdated)) == sent })
		if n := opened.Load(); n != want || failed.Load() > 0 {
			t.Errorf("%d connections, want %d; %d requests failed", n, want, failed.Load())
		}
	}
	send(1)
	send(1)
	server.CloseClientConnections()
	send(2)
	send(2)
	c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
		w.Header().Set("Connection", "close")
		return false
	})
	send(2)
	send(3)
}
