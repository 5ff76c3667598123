package hungtasks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A hanging thread is found after 200 s at most, whenever it begins to hang and whatever the load is, if the check runs
// every 10 s. It is one of many threads, so the state of its process does not show it.
func TestHungThreadIsFoundInTime(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // repeatable
	for range 40 {
		busy := random.IntN(3) // tasks that run all the time
		hangs := time.Hour + 5*time.Minute + time.Duration(random.Int64N(int64(2*time.Minute)))
		n := newLoadedNode(t, busy)
		found := time.Duration(0)
		for found == 0 && n.up < hangs+10*time.Minute {
			n.advance(9500*time.Millisecond+time.Duration(random.Int64N(int64(time.Second))), hangs)
			if got := n.run(); len(got) > 0 {
				found = n.up - hangs
			}
		}
		if found == 0 || found > 210*time.Second { // intervals are spread by 5 %
			t.Errorf("%d tasks run, one hangs after %s: found after %s", busy, hangs-time.Hour, found)
		}
	}
}

// If no task can hang, no thread is read; if one may, the threads are read once a minute. A burst of tasks that run for a
// moment is no reason to.
func TestThreadsAreReadSeldom(t *testing.T) {
	for _, c := range []struct{ busy, burst, most int }{{0, 0, 1}, {0, 5, 1}, {2, 0, 11}} {
		n := newLoadedNode(t, c.busy)
		scans := 0
		for run := range 60 {
			if run%6 == 1 { // for one update of the load
				n.load.update(c.busy + c.burst)
			}
			n.advance(10*time.Second, 100*time.Hour)
			last := n.state.scanned
			if n.run(); n.state.scanned != last && n.state.scanned != 0 {
				scans++
			}
		}
		if scans > c.most {
			t.Errorf("%d tasks run, %d at times: %d scans in 10 minutes, want %d at most", c.busy, c.burst, scans, c.most)
		}
	}
}

// loadedNode is a machine with one process of two threads, of which the second may hang.
type loadedNode struct {
	t      *testing.T
	host   *host.Host
	state  *hungTasks
	up     time.Duration
	update time.Duration // next of the load
	load   kernelLoad
	busy   int
}

func newLoadedNode(t *testing.T, busy int) *loadedNode {
	t.Helper()
	n := &loadedNode{t: t, state: &hungTasks{}, up: time.Hour, update: time.Hour, busy: busy,
		load: kernelLoad(busy * 2048)}
	n.host = hosttest.Host(t, func(h *host.Host) {
		h.NodeName = "n"
		h.Clock = func() finding.Timestamp { return finding.Timestamp{Boot: "b", SinceBoot: n.up} }
	})
	n.write("/proc/300/stat", stat(300, 'S'))
	n.write("/proc/300/task/300/stat", stat(300, 'S'))
	n.thread('S')
	return n
}

func (n *loadedNode) thread(state byte) {
	n.write("/proc/300/task/301/stat", stat(301, state))
	n.write("/proc/300/task/301/status", fmt.Sprintf("State:\t%c\nvoluntary_ctxt_switches:\t7\n"+
		"nonvoluntary_ctxt_switches:\t1\n", state))
	n.write("/proc/300/task/301/wchan", "rpc_wait_bit_killable")
}

func stat(id int, state byte) string {
	return fmt.Sprintf("%d (app) %c 1 1 1 0 -1 0 2 0 0 0 5 6 0 0 20 0 2 0 339 1 1 1\n", id, state)
}

func (n *loadedNode) write(name, content string) {
	n.t.Helper()
	name = n.host.Files.Path(name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// advance lets time pass, in which the kernel updates the load.
func (n *loadedNode) advance(by, hangs time.Duration) {
	n.up += by
	for ; n.update <= n.up; n.update += loadLongest {
		tasks := n.busy
		if n.update >= hangs {
			tasks++
		}
		n.load.update(tasks)
	}
	if n.up >= hangs {
		n.thread('D')
	}
	n.write("/proc/loadavg", fmt.Sprintf("%.2f 0.00 0.00 1/96 488\n", n.load.read()))
}

func (n *loadedNode) run() []finding.Finding {
	n.t.Helper()
	found, err := n.state.run(n.t.Context(), n.host, DefaultSettings())
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}
