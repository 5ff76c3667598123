package load

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func FuzzLoadFiles(f *testing.F) {
	f.Add("0.14 0.25 0.30 1/96 488\n", "some avg10=0.24 avg60=0.72 avg300=1.73 total=1\nfull avg10=0.00 avg60=0.00 "+
		"avg300=0.00 total=0\n", "0-3,8")
	f.Fuzz(func(t *testing.T, loadavg, pressureFile, cpus string) {
		seen, err := ParseLoadavg(loadavg)
		if err == nil && (seen.Load1 < 0 || seen.Load1 != seen.Load1 || seen.Runnable < 0) {
			t.Fatalf("%q is %+v", loadavg, seen)
		}
		if p, err := parsePressure(pressureFile); err != nil && p != (pressure{}) {
			t.Fatal("error and value")
		} else if err == nil && !p.Known {
			t.Fatalf("%q is nothing", pressureFile)
		}
		if n, err := checkkit.CountCPUs(cpus); err == nil && n < 1 {
			t.Fatalf("%q are %d processors", cpus, n)
		}
	})
}

// A daemon knows more than one run: the CPU time of each process since the previous run, and tasks blocked for long.
func TestLoadRemembers(t *testing.T) {
	m, check := checktest.NewLoadMachine(t), New(DefaultSettings())
	m.Write("proc/loadavg", "10.00 9.00 1.00 3/96 488")
	m.Process(10, "R", 1000, "busy.service")
	m.Process(11, "S", 500, "calm.service")
	for pid := 20; pid < 32; pid++ {
		m.Process(pid, "D", 0, "stuck.service")
	}
	if got := m.Run(check)[0]; !strings.Contains(got.Message, "system.slice/busy.service 1 runnable") {
		t.Errorf("first run: %s", got.Message)
	}
	m.Up += 30 * time.Second
	m.Process(10, "S", 1000+4500, "busy.service") // 45 s of CPU in 30 s
	m.Process(11, "S", 500+300, "calm.service")
	m.Write("proc/loadavg", "10.00 3.00 1.00 3/96 488") // five minutes do not show them yet
	got := m.Run(check)[0]
	if got.Reason != "BlockedTasks" || !strings.Contains(got.Message, "most CPU: system.slice/busy.service 1.5 CPUs, "+
		"system.slice/calm.service 0.1 CPUs") ||
		!strings.Contains(got.Message, "blocked: 12 in io_schedule (system.slice/stuck.service: p)") {
		t.Errorf("second run: %+v", got)
	}
	m.Write("proc/loadavg", "0.10 0.10 1.00 1/96 488")
	if got := m.Run(check); len(got) != 0 {
		t.Errorf("after it was over: %+v", got)
	}
}

// A fatal finding stays fatal until the value is well below the threshold.
func TestLoadFatalDoesNotFlap(t *testing.T) {
	m, check := checktest.NewLoadMachine(t), New(DefaultSettings())
	for _, step := range []struct {
		load15 float64 // of two processors
		want   finding.Severity
	}{{39, finding.Warning}, {41, finding.Fatal}, {39, finding.Fatal}, {31, finding.Fatal}, {29, finding.Warning},
		{39, finding.Warning}} {
		m.Write("proc/loadavg", fmt.Sprintf("40.00 40.00 %.2f 3/96 488", step.load15))
		if got := m.Run(check)[0].Severity; got != step.want {
			t.Errorf("load15 %v: %s, want %s", step.load15, got, step.want)
		}
	}
}

// A scan of many processes is cheap and rare.
func TestLoadScansSeldom(t *testing.T) {
	m, check := checktest.NewLoadMachine(t), New(DefaultSettings())
	m.Write("proc/loadavg", "10.00 9.00 1.00 3/96 488")
	m.Process(10, "R", 1000, "busy.service")
	first := m.Run(check)[0].Message
	m.Up += 10 * time.Second
	m.Process(11, "R", 1000, "other.service")
	if got := m.Run(check)[0].Message; got != first {
		t.Errorf("scanned again after 10 s: %s", got)
	}
	m.Up += 20 * time.Second
	if got := m.Run(check)[0].Message; !strings.Contains(got, "other.service") {
		t.Errorf("not scanned after 30 s: %s", got)
	}
}
