package kinds

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// Before Linux 6.16 the kernel does not show whose connection a process serves. There only a fresh mount is a pod's, and
// only if no other process has /dev/fuse open. Above it does, and other processes do not matter.
func TestServerOfFUSE(t *testing.T) {
	const shown, other, untold = "fuse_connection:\t46\n", "fuse_connection:\t47\n", "pos:\t0\n"
	for name, test := range map[string]struct {
		all    []serving
		mature bool
		want   string
	}{
		"its connection": {all: []serving{{inspecttest.Dead, shown}}, want: inspecttest.Dead},
		"its connection, of an old mount": {all: []serving{{inspecttest.Dead, shown}, {"", shown}}, mature: true,
			want: inspecttest.Dead},
		"another connection": {all: []serving{{inspecttest.Dead, other}}},
		"two pods serve it":  {all: []serving{{inspecttest.Dead, shown}, {inspecttest.Living, shown}}},
		"the host serves it": {all: []serving{{"", shown}}},
		"old kernel": {all: []serving{{inspecttest.Dead, untold}, {inspecttest.Dead, untold}},
			want: inspecttest.Dead},
		"old kernel, old mount":            {all: []serving{{inspecttest.Dead, untold}}, mature: true},
		"old kernel, the host may":         {all: []serving{{inspecttest.Dead, untold}, {"", untold}}},
		"old kernel, two pods may":         {all: []serving{{inspecttest.Dead, untold}, {inspecttest.Living, untold}}},
		"old kernel, no process may serve": {all: []serving{{inspecttest.Dead, ""}}},
	} {
		scan := scanOf(t, test.all)
		if got, err := findServer(t.Context(), scan, 46, !test.mature); got != test.want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// After the pod of a FUSE filesystem has ended, another server may have made a new one on the same point, with the same
// numbers.
func TestNextServerOfFUSE(t *testing.T) {
	for name, test := range map[string]struct {
		all                  []serving
		broken               error
		uid, foreign, doubts string
	}{
		"the pod has other processes": {all: []serving{{inspecttest.Dead, ""}}, uid: inspecttest.Dead},
		"none serves it":              {all: []serving{{inspecttest.Living, ""}}, uid: inspecttest.Dead},
		"another pod serves it": {all: []serving{{inspecttest.Living, "fuse_connection:\t46\n"}},
			uid: inspecttest.Living},
		"the host serves it": {all: []serving{{"", "fuse_connection:\t46\n"}}, uid: inspecttest.Dead,
			foreign: "process 10, which is of no pod"},
		"not known": {broken: errors.New("/proc is away"), uid: inspecttest.Dead,
			doubts: "/proc is away"},
	} {
		scan, s := scanOf(t, test.all), server{uid: inspecttest.Dead, passes: maxPasses}
		if test.broken != nil {
			scan.Processes = func() (hostscan.ProcessTable, error) { return hostscan.ProcessTable{}, test.broken }
		}
		foreign, doubt := s.update(t.Context(), scan, 46)
		if s.uid != test.uid || !strings.Contains(foreign, test.foreign) || (foreign == "") != (test.foreign == "") ||
			!strings.Contains(doubt, test.doubts) || (doubt == "") != (test.doubts == "") {
			t.Errorf("%s: %q, %q, %q", name, s.uid, foreign, doubt)
		}
	}
}

// serving is a process with one open file: /dev/fuse, if the kernel tells something about it.
type serving struct{ uid, info string }

// scanOf makes a node with these processes, whose PIDs begin with 10.
func scanOf(t *testing.T, all []serving) *hostscan.Scan {
	t.Helper()
	scan := MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
	table := hostscan.ProcessTable{Count: map[string]int{}}
	for i, p := range all {
		dir := fmt.Sprintf("proc/%d/task/%[1]d", 10+i)
		hosttest.Write(t, scan.Host.Files.Root, dir+"/fdinfo/3", p.info)
		files := scan.Host.Files.Path("/" + dir + "/fd")
		if err := os.MkdirAll(files, 0o755); err != nil {
			t.Fatal(err)
		}
		target := map[bool]string{true: "/dev/fuse", false: "/dev/null"}[p.info != ""]
		if err := os.Symlink(target, files+"/3"); err != nil {
			t.Fatal(err)
		}
		if p.uid != "" {
			table.Pods = append(table.Pods, hostscan.PodProcess{Stat: proc.Stat{PID: 10 + i}, UID: p.uid})
			table.Count[p.uid]++
		}
	}
	scan.Processes = func() (hostscan.ProcessTable, error) { return table, nil }
	return scan
}
