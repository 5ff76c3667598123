package kinds

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

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
