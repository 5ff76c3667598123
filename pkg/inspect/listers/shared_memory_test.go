package listers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// Shared memory is a leftover of the pod whose process created it, if a pass has seen that process; also after a
// restart of the agent. Segments of a living pod, of no pod, and with a creator that was never seen are not reported.
func TestSharedMemory(t *testing.T) {
	n := newNode(t)
	n.Add(dead, "job")
	cgroup := func(uid string) []string {
		return n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + uid)
	}
	names := map[string]string{}
	alive, _ := hosttest.SharedMemory(t, cgroup(living)...)
	ours, end := hosttest.SharedMemory(t, cgroup(dead)...)
	admin, _ := hosttest.SharedMemory(t)
	unseen, endUnseen := hosttest.SharedMemory(t, cgroup(dead)...)
	names[alive], names[ours], names[admin], names[unseen] = "living", "dead", "admin", "unseen"
	endUnseen()
	check := func(report inspect.Report, want inspect.Verdict) {
		t.Helper()
		got := map[string]inspect.Verdict{}
		for _, o := range report.Objects {
			if name := names[o.ID]; o.Kind == inspect.SharedMemory && name != "" {
				got[name] = o.Verdict
			}
		}
		if diff := cmp.Diff(map[string]inspect.Verdict{"living": inspect.Live, "dead": want, "admin": inspect.Foreign,
			"unseen": inspect.Foreign}, got); diff != "" {
			t.Error(diff, whys(report, dead))
		}
	}
	i := n.inspector()
	report, history := passes(t, n, i, nil, 1, time.Minute)
	check(report, inspect.Live)
	end()
	n.Remove(dead)
	report, history = passes(t, n, i, history, 3, 4*time.Minute)
	check(report, inspect.Candidate)
	report, history = passes(t, n, n.inspector(), history, 1, 4*time.Minute) // started again
	check(report, inspect.Leftover)
	last := n.inspector()
	_, history = passes(t, n, last, history, 1, 2*time.Hour)
	later, _ := passes(t, n, last, history, 3, 10*time.Minute)
	for id, want := range map[string]inspect.Verdict{unseen: inspect.Unowned, admin: inspect.Foreign, alive: inspect.Live} {
		if o := one(t, later, inspect.SharedMemory, id); o.Verdict != want {
			t.Errorf("%s: %s: %s", names[id], o.Verdict, o.Why)
		}
	}
	if o := one(t, report, inspect.SharedMemory, ours); o.Facts["bytes"] != "4096" || o.Facts["size"] != "8192" ||
		o.Pod.UID != dead {
		t.Errorf("%+v", o)
	}
}

const sysvipc = `       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
         0      32768   600                  4096  4711  4712      1  1000  1000  1001  1000          0          0 1763841912                  4096                     8192
`

// An attached segment is no leftover, and an unreadable line is an error.
func TestParseSegments(t *testing.T) {
	segments, err := parseSegments(sysvipc)
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	s := segments[0]
	if s != (segment{id: "32768", key: "0", creator: 4711, last: 4712, attached: 1, size: "4096", memory: "12288",
		user: "1001", changed: 1763841912}) {
		t.Errorf("%+v", s)
	}
	if o := s.object(inspecttest.Dead, false, time.Now()); o.InUse == "" || o.Pod.UID != inspecttest.Dead {
		t.Errorf("%+v", o)
	}
	for _, text := range []string{"", "key shmid\n", sysvipc + "1 2 3\n", strings.Replace(sysvipc, "4711", "x", 1)} {
		if _, err := parseSegments(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

func FuzzParseSegments(f *testing.F) {
	f.Add(sysvipc)
	f.Fuzz(func(t *testing.T, text string) {
		if segments, err := parseSegments(text); err != nil && segments != nil {
			t.Error("segments and an error")
		}
	})
}

// A process started after the segment was made is not its creator, whatever its PID.
func TestCreatorIsAsOldAsItsSegment(t *testing.T) {
	now := host.Now()
	now.SinceBoot = 5 * time.Hour
	scan := &hostscan.Scan{Host: &host.Host{Files: host.Files{Root: t.TempDir()},
		Clock: func() finding.Timestamp { return now }}}
	file := scan.Host.Files.Path("/proc/sysvipc/shm")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	made := now.Wall.Add(-time.Hour)
	hosttest.Write(t, "/", file, strings.Replace(sysvipc, "1763841912", fmt.Sprint(made.Unix()), 1))
	for began, want := range map[time.Duration]string{2 * time.Hour: inspecttest.Dead, time.Minute: ""} {
		process := hostscan.PodProcess{UID: inspecttest.Dead}
		process.PID, process.StartTime = 4711, uint64((now.SinceBoot-began)/(time.Second/100))
		scan.Processes = func() (hostscan.ProcessTable, error) {
			return hostscan.ProcessTable{Pods: []hostscan.PodProcess{process}, PIDs: []int{4711}}, nil
		}
		objects, err := new(creators).list(t.Context(), scan)
		if err != nil || len(objects) != 1 || objects[0].Pod.UID != want || (objects[0].Foreign == "") != (want != "") {
			t.Errorf("began %s ago: %+v, %v", began, objects, err)
		}
	}
}

// A segment with a creator that was never seen is unowned after an hour, unless a process has it attached.
func TestSegmentOfNobody(t *testing.T) {
	made := time.Unix(1763841912, 0)
	for name, c := range map[string]struct {
		attached uint64
		runs     bool
		age      time.Duration
		foreign  bool
	}{
		"an hour old":            {0, false, time.Hour, false},
		"young":                  {0, false, 59 * time.Minute, true},
		"attached":               {1, false, 48 * time.Hour, true},
		"its creator runs":       {0, true, 48 * time.Hour, true},
		"the clock was set back": {0, false, -time.Hour, true},
	} {
		s := segment{id: "1", creator: 4711, attached: c.attached, changed: made.Unix()}
		if o := s.object("", c.runs, made.Add(c.age)); (o.Foreign != "") != c.foreign || o.Pod.UID != "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
