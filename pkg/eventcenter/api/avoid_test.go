package api_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
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
		if r, answer := c.detect(e); r.StatusCode != http.StatusOK {
			t.Fatal(r.StatusCode, answer)
		}
	}
	listed := func() string {
		now = now.Add(time.Minute)
		var avoid api.Avoid
		c.get("/v1/avoid", &avoid)
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
	if got := listed(); got != "false n1 pod-delivery tracecenter" {
		t.Error(got)
	}
	report("n4", "4", late)
	report("n5", "5", late)
	c.send(raised("n6", 2, "x", finding.Fatal))
	if got := listed(); got != "true n6 disk " {
		t.Errorf("in a storm: %s", got)
	}
}
