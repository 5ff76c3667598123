package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// The agent may cause a request in four minutes on a node at rest, those included that kubelet makes to learn who calls
// its API (TokenReview) and what it may (SubjectAccessReview). A round of 40 minutes is too long for a test: internal/kube
// (TestCostOfRounds) counts them. What is left to prove here, by the log of a real apiserver, is that between rounds
// nobody asks anything: the watch and what is read once are made at the start, and then there is silence.
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
	// A round may begin in these two minutes; the next one is far away then.
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

// silence returns what is asked in the next two minutes. What changes has to be reported: writes do not count.
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
	info, err := os.Stat(l.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// audited is the part of a line of the apiserver's audit log that is read.
type audited struct {
	Stage, Verb   string
	User          struct{ Username string }
	ObjectRef     struct{ Resource, Subresource string }
	RequestObject struct {
		Spec struct {
			User               string
			ResourceAttributes struct{ Resource, Subresource string }
		}
	}
}

// agentUser ends the name of the agent's ServiceAccount. Another agent on this machine may be asking as the node itself.
const agentUser = ":nodeagent"

// agentRequests counts the requests between two sizes of the audit log that the agent made or caused. A review of a
// token does not show whose it is; nobody else calls kubelet in these tests but the apiserver, which has a certificate.
func agentRequests(t *testing.T, l *lab.Lab, from, to int64) map[string]int {
	t.Helper()
	file, err := os.Open(l.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, from, to-from))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e audited
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the first and the last line may be cut
		}
		object, spec := e.ObjectRef, e.RequestObject.Spec
		switch began := e.Verb == "watch" && e.Stage == "ResponseStarted"; {
		case !began && (e.Stage != "ResponseComplete" || e.Verb == "watch"):
		case strings.HasSuffix(e.User.Username, agentUser):
			counts[fmt.Sprintf("%s %s %s", e.Verb, object.Resource, object.Subresource)]++
		case object.Resource == "tokenreviews":
			counts["kubelet's TokenReview"]++
		case object.Resource == "subjectaccessreviews" && strings.HasSuffix(spec.User, agentUser):
			r := spec.ResourceAttributes
			counts[fmt.Sprintf("kubelet's SubjectAccessReview %s/%s", r.Resource, r.Subresource)]++
		}
	}
	return counts
}
