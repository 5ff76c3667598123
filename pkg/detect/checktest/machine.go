package checktest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// LoadMachine is a machine whose files a test changes between runs.
type LoadMachine struct {
	t    *testing.T
	Up   time.Duration
	Host *host.Host
}

// NewLoadMachine returns a machine of files, without load.
func NewLoadMachine(t *testing.T) *LoadMachine {
	m := &LoadMachine{t: t, Up: time.Hour}
	m.Host = &host.Host{NodeName: "n", Files: host.Files{Root: t.TempDir()}, Paths: discover.DefaultPaths()}
	m.Host.Clock = func() finding.Timestamp { return finding.Timestamp{Boot: "b", SinceBoot: m.Up} }
	m.Write("sys/devices/system/cpu/online", "0-1")
	return m
}

// Write writes a file of the machine.
func (m *LoadMachine) Write(name, content string) {
	m.t.Helper()
	file := filepath.Join(m.Host.Files.Root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// Process adds a process: its state, CPU time in ticks, and the service that it belongs to.
func (m *LoadMachine) Process(pid int, state string, ticks int, service string) {
	m.Write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (p) %s 1 1 1 0 -1 0 2 0 0 0 %d 0 0 0 20 0 1 0 339 1 1 1",
		pid, state, ticks))
	m.Write(fmt.Sprintf("proc/%d/task/%d/wchan", pid, pid), "io_schedule")
	m.Write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/system.slice/"+service)
}

// Run runs the check once, some time after the previous run.
func (m *LoadMachine) Run(check detect.Check) []finding.Finding {
	m.t.Helper()
	findings, err := check.Observe(m.t.Context(), m.Host)
	if err != nil {
		m.t.Fatal(err)
	}
	return findings
}
