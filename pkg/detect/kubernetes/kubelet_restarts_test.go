package kubernetes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// The count of restarts survives restarts of the agent, but not reboots.
func TestKubeletRestartsSurviveTheAgent(t *testing.T) {
	store, now := checktest.StateStore{}, finding.Timestamp{Boot: "a", SinceBoot: time.Hour}
	process := host.Process{PID: 10, StartTime: 300}
	h := &host.Host{Clock: func() finding.Timestamp { return now }}
	h.Kubelet.Process = func() (host.Process, error) { return process, nil }
	expect := func(c detect.Check, want ...string) {
		t.Helper()
		found, err := c.Run(t.Context(), h)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	expect(KubeletRestarts(store))
	for i := range 4 { // each seen by another agent
		now.SinceBoot += time.Minute
		process = host.Process{PID: 11 + i, StartTime: uint64(now.SinceBoot/(10*time.Millisecond)) - 5}
		found, err := KubeletRestarts(store).Run(t.Context(), h)
		if err != nil || len(found) > 0 && !found[0].BelowRaise {
			t.Errorf("restart %d: %v, %v", i+1, found, err)
		}
	}
	now.SinceBoot += time.Minute
	process.PID, process.StartTime = 20, uint64(now.SinceBoot/(10*time.Millisecond))-5
	expect(KubeletRestarts(store), "kubelet/kubelet=KubeletRestartsOften warning")
	now = finding.Timestamp{Boot: "b", SinceBoot: time.Hour}
	expect(KubeletRestarts(store))
	store[restartsKey] = []byte("{")
	expect(KubeletRestarts(store))
}

// The configuration that kubelet read when it started is remembered across restarts of the agent.
func TestKubeletConfigSurvivesTheAgent(t *testing.T) {
	h := &host.Host{Clock: func() finding.Timestamp {
		return finding.Timestamp{Boot: "a", SinceBoot: time.Hour}
	}, Files: host.Files{Root: t.TempDir()}}
	h.Paths.KubeletConfig = "/config.yaml"
	process := host.Process{PID: 10, StartTime: 300}
	h.Kubelet.Process = func() (host.Process, error) { return process, nil }
	store := checktest.StateStore{}
	expect := func(text string, want ...string) {
		t.Helper()
		checktest.WriteFile(t, h.Files.Root, txtar.File{Name: "config.yaml", Data: []byte(
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDomain: " + text + "\n")})
		found, err := KubeletConfig(store).Run(t.Context(), h)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	expect("a")
	expect("b", "kubelet/kubelet=KubeletConfigNotApplied info")
	process.PID = 11
	expect("b")
	store[kubeletConfigKey] = []byte("{")
	expect("c")
}
