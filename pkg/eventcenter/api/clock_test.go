package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// A node whose clock is off by hours is listed with the offset, from its agent's sign of life until its next message
// disagrees; a node whose message took a minute to arrive is not listed.
func TestWrongClock(t *testing.T) {
	c := newCenter(t, nil)
	word := func(node string, sequence uint64, ahead time.Duration) {
		e := agentEvent(event.AgentAlive, node, sequence)
		e.Time = time.Now().Add(ahead).UTC()
		c.send(e)
	}
	word("ahead", 1, 3*time.Hour)
	word("behind", 1, -2*time.Hour)
	word("right", 1, -time.Minute)
	listed := func() string {
		var answer api.NodeList
		c.get("/v1/nodes?agent=wrong-clock", &answer)
		var names []string
		for _, n := range answer.Nodes {
			names = append(names, n.Node+" "+(time.Duration(n.ClockAhead)*time.Second).Round(time.Minute).String())
		}
		return strings.Join(names, ", ")
	}
	if got := listed(); got != "ahead 3h0m0s, behind -2h0m0s" {
		t.Error(got)
	}
	_, metrics := c.do(c.request(http.MethodGet, "/metrics", "", ""))
	if want := `eventcenter_odd_agents{oddity="wrong-clock"} 2` + "\n"; !strings.Contains(metrics, want) {
		t.Errorf("no %s", want)
	}
	word("ahead", 2, 0)
	if got := listed(); got != "behind -2h0m0s" {
		t.Error(got)
	}
}
