package detect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func FuzzLoadFiles(f *testing.F) {
	f.Add("0.14 0.25 0.30 1/96 488\n", "some avg10=0.24 avg60=0.72 avg300=1.73 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "0-3,8")
	f.Fuzz(func(t *testing.T, loadavg, pressureFile, cpus string) {
		var seen loadSeen
		if err := parseLoadavg(loadavg, &seen); err == nil && (seen.Load1 < 0 || seen.Load1 != seen.Load1 || seen.Runnable < 0) {
			t.Fatalf("%q is %+v", loadavg, seen)
		}
		if p, err := parsePressure(pressureFile); err != nil && p != (pressure{}) {
			t.Fatal("error and value")
		} else if err == nil && !p.Known {
			t.Fatalf("%q is nothing", pressureFile)
		}
		if n, err := countCPUs(cpus); err == nil && n < 1 {
			t.Fatalf("%q are %d processors", cpus, n)
		}
	})
}

// loadMachine is a machine whose files a test changes between looks.
type loadMachine struct {
	t    *testing.T
	up   time.Duration
	host *host.Host
}

func newLoadMachine(t *testing.T) *loadMachine {
	m := &loadMachine{t: t, up: time.Hour}
	m.host = &host.Host{NodeName: "n", Files: host.Files{Root: t.TempDir()}, Paths: host.DefaultPaths()}
	m.host.Clock = func() finding.Stamp { return finding.Stamp{Boot: "b", Up: m.up} }
	m.write("sys/devices/system/cpu/online", "0-1")
	return m
}

func (m *loadMachine) write(name, content string) {
	m.t.Helper()
	file := filepath.Join(m.host.Files.Root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *loadMachine) process(pid int, state string, ticks int, service string) {
	m.write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (p) %s 1 1 1 0 -1 0 2 0 0 0 %d 0 0 0 20 0 1 0 339 1 1 1", pid, state, ticks))
	m.write(fmt.Sprintf("proc/%d/task/%d/wchan", pid, pid), "io_schedule")
	m.write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/system.slice/"+service)
}

func (m *loadMachine) look(check Check) []finding.Finding {
	m.t.Helper()
	findings, err := check.Run(m.t.Context(), m.host)
	if err != nil {
		m.t.Fatal(err)
	}
	return findings
}

// A daemon knows more than one look: how much CPU each used since the look before, and who is blocked for long.
func TestLoadRemembers(t *testing.T) {
	m, check := newLoadMachine(t), Load(DefaultLoadSettings())
	m.write("proc/loadavg", "10.00 9.00 1.00 3/96 488")
	m.process(10, "R", 1000, "busy.service")
	m.process(11, "S", 500, "calm.service")
	for pid := 20; pid < 32; pid++ {
		m.process(pid, "D", 0, "stuck.service")
	}
	if got := m.look(check)[0]; !strings.Contains(got.Message, "system.slice/busy.service 1 runnable") {
		t.Errorf("first look: %s", got.Message)
	}
	m.up += 30 * time.Second
	m.process(10, "S", 1000+4500, "busy.service") // 45 s of CPU in 30 s
	m.process(11, "S", 500+300, "calm.service")
	m.write("proc/loadavg", "10.00 3.00 1.00 3/96 488") // five minutes do not show them yet
	got := m.look(check)[0]
	if got.Reason != "BlockedTasks" || !strings.Contains(got.Message, "most CPU: system.slice/busy.service 1.5 CPUs, system.slice/calm.service 0.1 CPUs") ||
		!strings.Contains(got.Message, "blocked: 12 in io_schedule (system.slice/stuck.service: p)") {
		t.Errorf("second look: %+v", got)
	}
	m.write("proc/loadavg", "0.10 0.10 1.00 1/96 488")
	if got := m.look(check); len(got) != 0 {
		t.Errorf("after it was over: %+v", got)
	}
}

// What is fatal stays so until it is well below the threshold.
func TestLoadFatalDoesNotFlap(t *testing.T) {
	m, check := newLoadMachine(t), Load(DefaultLoadSettings())
	for _, step := range []struct {
		load15 float64 // of two processors
		want   finding.Severity
	}{{39, finding.Warning}, {41, finding.Fatal}, {39, finding.Fatal}, {31, finding.Fatal}, {29, finding.Warning}, {39, finding.Warning}} {
		m.write("proc/loadavg", fmt.Sprintf("40.00 40.00 %.2f 3/96 488", step.load15))
		if got := m.look(check)[0].Severity; got != step.want {
			t.Errorf("load15 %v: %s, want %s", step.load15, got, step.want)
		}
	}
}

// A scan of many processes costs little and happens seldom.
func TestLoadScansSeldom(t *testing.T) {
	m, check := newLoadMachine(t), Load(DefaultLoadSettings())
	m.write("proc/loadavg", "10.00 9.00 1.00 3/96 488")
	m.process(10, "R", 1000, "busy.service")
	first := m.look(check)[0].Message
	m.up += 10 * time.Second
	m.process(11, "R", 1000, "other.service")
	if got := m.look(check)[0].Message; got != first {
		t.Errorf("scanned again after 10 s: %s", got)
	}
	m.up += 20 * time.Second
	if got := m.look(check)[0].Message; !strings.Contains(got, "other.service") {
		t.Errorf("not scanned after 30 s: %s", got)
	}
}
