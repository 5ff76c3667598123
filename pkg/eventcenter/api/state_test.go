package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A node that fails its pods, as tracecenter sees it, is to be avoided although that is a warning. Another warning lists no
// node, nor does an agent that uses the name of the check; and if many nodes fail their pods, the cause is elsewhere.
func TestAvoidsNodeThatFailsItsPods(t *testing.T) {
	now := time.Now()
	c := newCenter(t, func(config *api.Config) { config.Now = func() time.Time { return now } })
	for i := range uint64(10) {
		c.send(agentEvent(event.AgentStarted, fmt.Sprintf("n%d", i), 1))
	}
	late := map[string]any{"check": "pod-delivery", "reason": "ImagePullFailsOnNode", "severity": "warning"}
	report := func(node, id string, data map[string]any) {
		e := detected(t, "tracecenter", id, event.FaultRaised, 1, data)
		e.SetSource("/clusters/prod/nodes/" + node + "/tracecenter")
		c.answers("report", c.detecting(e), http.StatusOK)
	}
	listed := func() string {
		now = now.Add(time.Minute)
		avoid := get[api.Avoid](c, "/v1/avoid")
		text := fmt.Sprint(avoid.Pools[0].Storm)
		for _, n := range avoid.Pools[0].Avoid {
			text += fmt.Sprint(" ", n.Node, " ", n.Reasons[0].Check, " ", n.Reasons[0].Detector)
		}
		return text
	}
	report("n1", "1", late)
	report("n2", "2", map[string]any{"severity": "warning"})
	ofAgent := raised("n3", 2, "x", finding.Warning)
	fault := ofAgent.Data.(event.Fault)
	fault.Check = "pod-delivery"
	ofAgent.Data = fault
	c.send(ofAgent)
	expecttest.Equal(t, "avoid", "false n1 pod-delivery tracecenter", listed())
	report("n4", "4", late)
	report("n5", "5", late)
	c.send(raised("n6", 2, "x", finding.Fatal))
	expecttest.Equal(t, "avoid in a storm", "true n6 disk ", listed())
}

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
		answer := get[api.NodeList](c, "/v1/nodes?agent=wrong-clock")
		var names []string
		for _, n := range answer.Nodes {
			names = append(names, n.Node+" "+(time.Duration(n.ClockAhead)*time.Second).Round(time.Minute).String())
		}
		return strings.Join(names, ", ")
	}
	expecttest.Equal(t, "wrong clocks", "ahead 3h0m0s, behind -2h0m0s", listed())
	expecttest.Has(t, "metrics", c.text("/metrics"), `eventcenter_odd_agents{oddity="wrong-clock"} 2`+"\n")
	word("ahead", 2, 0)
	expecttest.Equal(t, "wrong clocks", "behind -2h0m0s", listed())
}

// With detectors alone the list holds as long as their reports do; before the first report it says that there was none,
// without a time. With agents it is stale when they are all silent, whatever detectors report.
func TestAvoidWithDetectorsAlone(t *testing.T) {
	now := time.Now()
	c := newCenter(t, func(config *api.Config) { config.Now = func() time.Time { return now } })
	_, none := c.do(c.request(http.MethodGet, "/v1/avoid", "", ""))
	if want := `{"staleReason":"NeverHeard","pools":[]}` + "\n"; none != want {
		t.Errorf("no report: %s, want %s", none, want)
	}
	report := func(detector, id string, kind event.Type, change map[string]any) {
		if r, answer := c.do(c.detecting(detected(t, detector, id, kind, 1, change))); r.StatusCode != http.StatusOK {
			t.Fatal(r.StatusCode, answer)
		}
	}
	listed := func(later time.Duration) string {
		now = now.Add(later)
		var avoid api.Avoid
		c.get("/v1/avoid", &avoid)
		text := avoid.StaleReason
		if (avoid.StaleSince != nil) != (text == "NotHeard") || avoid.StaleSince != nil && avoid.StaleSince.IsZero() {
			t.Errorf("%s since %s", text, avoid.StaleSince)
		}
		for _, n := range avoid.Pools[0].Avoid {
			for _, r := range n.Reasons {
				text += fmt.Sprint(" ", n.Node, ":", r.Detector)
			}
		}
		return text
	}
	report("gpud", "1", event.FaultRaised, nil)
	report("bmc", "1", event.FaultRaised, map[string]any{"severity": "info"})
	for _, step := range []struct {
		what  string
		later time.Duration
		want  string
	}{{"reported", time.Minute, " a:gpud"}, {"its time to live is an hour", 57 * time.Minute, " a:gpud"},
		{"it is over", 5 * time.Minute, "NotHeard a:gpud"}} {
		if got := listed(step.later); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
	now = time.Now()
	c.send(raised("a", 1, "x", finding.Fatal))
	if got := listed(2 * time.Second); got != " a:gpud a:" {
		t.Errorf("its agent is heard: %q", got)
	}
	if got := listed(10 * time.Minute); got != "NotHeard a:gpud a:" {
		t.Errorf("its agent is silent: %q", got)
	}
}

// In a storm every node with a fatal fault is listed, also if its check has the name of the center's own or of tracecenter's;
// a node that is lost, or fails its pods, is not.
func TestStormListsFatalNodes(t *testing.T) {
	now := time.Now()
	c := newCenter(t, func(config *api.Config) { config.Now = func() time.Time { return now } })
	for i := range 10 {
		node := fmt.Sprintf("n%d", i)
		c.send(agentEvent(event.AgentStarted, node, 1))
		e := detected(t, "x", "1", event.FaultRaised, 1, map[string]any{"check": []string{"pod-delivery", "silence"}[i%2],
			"severity": []string{"fatal", "warning"}[i/4%2]})
		e.SetSource("/clusters/prod/nodes/" + node + "/x")
		if r, answer := c.do(c.detecting(e)); r.StatusCode != http.StatusOK {
			t.Fatal(r.StatusCode, answer)
		}
	}
	c.silent(event.NodeLost, "n7", "LeaseUnchanged")
	now = now.Add(time.Minute)
	var avoid api.Avoid
	c.get("/v1/avoid", &avoid)
	var nodes []string
	for _, n := range avoid.Pools[0].Avoid {
		nodes = append(nodes, n.Node)
	}
	if got := fmt.Sprint(avoid.Pools[0].Storm, nodes); got != "true [n0 n1 n2 n3 n8 n9]" {
		t.Error(got)
	}
}
