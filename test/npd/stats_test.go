package npd

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"contrib.go.opencensus.io/exporter/prometheus"
	"github.com/google/go-cmp/cmp"
	"go.opencensus.io/stats/view"
	"k8s.io/node-problem-detector/pkg/systemstatsmonitor"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// series returns the metrics of an endpoint without the values: names, labels, types and help texts.
func series(body string) []string {
	var found []string
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") {
			name, _, _ := strings.Cut(line, "} ")
			line, _, _ = strings.Cut(name, " ")
			if strings.Contains(name, "{") {
				line = name + "}"
			}
		}
		for _, group := range []string{"cpu_", "disk_", "host_", "memory_", "net_", "system_"} {
			if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), group) {
				found = append(found, line)
			}
		}
	}
	slices.Sort(found)
	return found
}

// machine returns a root with a copy of this machine's /proc. Kernels without modules have no /proc/modules, without
// which node-problem-detector exits; the copy has some.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"stat", "loadavg", "meminfo", "diskstats", "net/dev", "cmdline", "filesystems",
		"1/mountinfo", "sys/kernel/osrelease"} {
		save(t, filepath.Join(root, "proc", name), read(t, filepath.Join("/proc", name)))
	}
	save(t, filepath.Join(root, "proc/modules"),
		[]byte("nvidia 1 0 - Live 0x0 (PO)\nforeign 2 1 x, Live 0x0 (OE)\nnf_nat 3 0 - Live 0x0\n"))
	save(t, filepath.Join(root, "etc/os-release"), read(t, "/etc/os-release"))
	if err := os.Symlink("/sys", filepath.Join(root, "sys")); err != nil {
		t.Fatal(err)
	}
	return root
}

func save(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// inProc returns a copy of a configuration for another /proc.
func inProc(t *testing.T, name, proc string) string {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal(read(t, name), &c); err != nil {
		t.Fatal(err)
	}
	c["procPath"] = proc
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	name = filepath.Join(t.TempDir(), filepath.Base(name))
	save(t, name, data)
	return name
}

// The metrics of both shipped system stats monitors are served under the same names, with the same labels.
func TestSystemStats(t *testing.T) {
	exporter, err := prometheus.NewExporter(prometheus.Options{})
	if err != nil {
		t.Fatal(err)
	}
	view.RegisterExporter(exporter)
	root := machine(t)
	var files []npd.File
	for _, name := range []string{"system-stats-monitor.json", "net-cgroup-system-stats-monitor.json"} {
		name = inProc(t, filepath.Join(shipped(t), name), filepath.Join(root, "proc"))
		monitor := systemstatsmonitor.NewSystemStatsMonitorOrDie(name)
		if _, err := monitor.Start(); err != nil {
			t.Fatal(err)
		}
		defer monitor.Stop()
		file, err := npd.Decode(name, read(t, name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	h := &host.Host{NodeName: "node", Paths: host.Paths{InitPID: 1}, Files: host.Files{Root: root}, Clock: host.Now,
		Prober: probe.NewProber()}
	m := npd.New(files, nil, npd.DefaultSettings(), npd.Deps{Host: h})
	for _, l := range detect.RunOnce(t.Context(), h, m.Checks(), nil) {
		if l.Err != nil {
			t.Errorf("%s: %v", l.Check, l.Err)
		}
	}
	served := metrics.New(metrics.Config{})
	if err := served.Serve(m.Collectors()...); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	served.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	ours := series(answer.Body.String())

	var theirs []string
	for deadline := time.Now().Add(time.Minute); len(theirs) < len(ours) &&
		time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		answer := httptest.NewRecorder()
		exporter.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		theirs = series(answer.Body.String())
	}
	if len(theirs) < 50 {
		t.Fatalf("they serve %d series", len(theirs))
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("theirs (-), ours (+):\n%s", diff)
	}
}
