package e2e

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// On a node at rest the agent may cause one request in four minutes, including those that kubelet makes to authenticate
// and authorize its callers (TokenReview, SubjectAccessReview). A round of 40 minutes is too long for a test:
// internal/kube (TestCostOfRounds) counts its requests. This test proves, by the log of a real apiserver, that there
// are no requests between rounds: the watch and the single reads happen at start, followed by silence.
func TestNoRequestsAtRest(t *testing.T) {
	ofTheProcess(t, "the apiserver's log names a user for each process")
	need.Flag(t, *long, "-long: takes four to six minutes of silence")
	l := openLab(t)
	a := install(t, l, harness.Overrides{"inspect": map[string]any{"every": "1m", "listSpacing": "30s"}})
	begin := auditSize(t, l)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, 100*time.Second) // metrics of two minutes are read before it rests
	settled := auditSize(t, l)
	for what, count := range agentRequests(t, l, begin, settled) {
		t.Logf("at the start: %d × %s", count, what)
	}
	// A round may start within these two minutes; then the next one is far away.
	if asked := silence(t, l, settled); len(asked) > 0 {
		t.Logf("in two minutes: %v", asked)
		if asked = silence(t, l, auditSize(t, l)); len(asked) > 0 {
			t.Errorf("at rest, in two minutes: %v", asked)
		}
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

// silence returns the requests of the next two minutes. Changes must be reported: writes do not count.
func silence(t *testing.T, l *lab.Lab, from int64) map[string]int {
	t.Helper()
	wait(t, 2*time.Minute)
	asked := agentRequests(t, l, from, auditSize(t, l))
	maps.DeleteFunc(asked, func(what string, _ int) bool {
		return strings.HasPrefix(what, "patch ") || strings.HasPrefix(what, "create ")
	})
	return asked
}

func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

func auditSize(t *testing.T, l *lab.Lab) int64 {
	t.Helper()
	size, err := harness.AuditSize(l)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func agentRequests(t *testing.T, l *lab.Lab, from, to int64) map[string]int {
	t.Helper()
	counts, err := harness.AgentRequests(l, from, to)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}
