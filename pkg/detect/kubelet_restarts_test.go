package detect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Restarts are counted over restarts of the agent, and not over reboots.
func TestKubeletRestartsSurviveTheAgent(t *testing.T) {
	memory, now := memory{}, finding.Stamp{Boot: "a", Up: time.Hour}
	process := host.Process{PID: 10, StartTime: 300}
	h := &host.Host{Clock: func() finding.Stamp { return now }}
	h.Kubelet.Process = func() (host.Process, error) { return process, nil }
	look := func(c Check, want ...string) {
		t.Helper()
		found, err := c.Run(t.Context(), h)
		if diff := cmp.Diff(want, reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	look(KubeletRestarts(memory))
	for i := range 4 { // each seen by another agent
		now.Up += time.Minute
		process = host.Process{PID: 11 + i, StartTime: uint64(now.Up/(10*time.Millisecond)) - 5}
		found, err := KubeletRestarts(memory).Run(t.Context(), h)
		if err != nil || len(found) > 0 && !found[0].Marginal {
			t.Errorf("restart %d: %v, %v", i+1, found, err)
		}
	}
	now.Up += time.Minute
	process.PID, process.StartTime = 20, uint64(now.Up/(10*time.Millisecond))-5
	look(KubeletRestarts(memory), "kubelet/kubelet=KubeletRestartsOften warning")
	now = finding.Stamp{Boot: "b", Up: time.Hour}
	look(KubeletRestarts(memory))
	memory[restartsKey] = []byte("{")
	look(KubeletRestarts(memory))
}

// What kubelet read when it started is remembered over restarts of the agent.
func TestKubeletConfigSurvivesTheAgent(t *testing.T) {
	h := &host.Host{Clock: func() finding.Stamp { return finding.Stamp{Boot: "a", Up: time.Hour} }, Files: host.Files{Root: t.TempDir()}}
	h.Paths.KubeletConfig = "/config.yaml"
	process := host.Process{PID: 10, StartTime: 300}
	h.Kubelet.Process = func() (host.Process, error) { return process, nil }
	memory := memory{}
	look := func(text string, want ...string) {
		t.Helper()
		layOut(t, h.Files.Root, txtar.File{Name: "config.yaml", Data: []byte(text)})
		found, err := KubeletConfig(memory).Run(t.Context(), h)
		if diff := cmp.Diff(want, reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	look("a")
	look("b", "kubelet/kubelet=KubeletConfigNotApplied info")
	process.PID = 11
	look("b")
	memory[kubeletConfigKey] = []byte("{")
	look("c")
}
