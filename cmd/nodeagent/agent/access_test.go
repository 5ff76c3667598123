package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// An unusable kubeconfig blinds every check that asks the apiserver or kubelet: each of them becomes unknown, and one
// finding names them and says what to grant.
func TestOneLackIsOneFinding(t *testing.T) {
	name := filepath.Join(t.TempDir(), "kubelet.conf")
	if err := os.WriteFile(name, []byte("apiVersion: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o666); err != nil { //nolint:gosec // must be refused
		t.Fatal(err)
	}
	h := hosttest.Host(t)
	h.NodeName, h.Paths = "n", discover.DefaultPaths()
	h.Clock = hosttest.Now
	settings := kube.Config{Node: "n", KubeletKubeconfig: name, ServiceAccountDir: t.TempDir()}
	client, err := kube.New(settings, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	h.Cluster = client.Cluster()
	h.Kubelet = client.AtRest(kube.NewKubelet(settings, h.Files, h.Paths))
	tracker := finding.NewTracker(nil, nil)
	all := checks.Checks(checks.DefaultSettings(), checks.Deps{})
	blind := 0
	for range 2 {
		for _, l := range detect.RunOnce(t.Context(), h, all, nil) {
			if l.Err == nil || !strings.Contains(l.Err.Error(), name) {
				continue
			}
			blind++
			if finding.AccessOf(l.Err) == nil {
				t.Errorf("%s: the lack is not named: %v", l.Check, l.Err)
			}
			for _, u := range tracker.Observe(l) {
				if u.Kind == finding.Raised {
					t.Errorf("%s: raised %s", l.Check, u.Finding.Reason)
				}
			}
		}
		clock := hosttest.Now()
		clock.SinceBoot, clock.Wall = clock.SinceBoot+time.Hour, clock.Wall.Add(time.Hour)
		h.Clock = func() finding.Timestamp { return clock }
	}
	if blind < 4 {
		t.Errorf("%d checks are blind", blind)
	}
	found := accessFindings(tracker.State())
	if len(found) != 1 {
		t.Fatalf("%d findings: %+v", len(found), found)
	}
	for _, want := range []string{name, "chown root:root", "node-registration"} {
		if !strings.Contains(found[0].Message, want) {
			t.Errorf("%q is not in: %s", want, found[0].Message)
		}
	}
	for check, s := range tracker.State() {
		if s.Status != finding.StatusUnknown {
			t.Errorf("%s is %s", check, s.Status)
		}
	}
	t.Log(found[0].Message)
}

// If the inspection is blind only because of the lack that blinds the checks, it reports the same lack.
func TestInspectionLacks(t *testing.T) {
	lack, other := &finding.Access{Lack: "a right", Grant: "give it"}, &finding.Access{Lack: "another"}
	for name, test := range map[string]struct {
		errors []object.Failure
		want   *finding.Access
	}{
		"one lack": {[]object.Failure{{What: "cluster", Error: "denied", Access: lack}, {What: "kubelet", Error: "x",
			Access: lack}}, lack},
		"two lacks": {[]object.Failure{{What: "cluster", Error: "denied", Access: lack}, {What: "kubelet",
			Access: other}}, nil},
		"a fault too": {[]object.Failure{{What: "cluster", Error: "denied", Access: lack}, {What: "cri",
			Error: "hung"}}, nil},
		"a fault": {[]object.Failure{{What: "cri", Error: "hung"}}, nil},
	} {
		err := passError(object.Report{Errors: test.errors,
			Objects: []object.Assessment{{Object: object.Object{Kind: object.Sandbox}, Verdict: object.Unknown}}})
		got := finding.AccessOf(err)
		if err == nil || (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s: %v, lack %v, want %v", name, err, got, test.want)
		}
	}
}
