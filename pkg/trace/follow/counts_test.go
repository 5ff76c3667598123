package follow

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// Every act has one verdict, and the counts add up.
func TestCountsAddUp(t *testing.T) {
	w := newWorld(Config{})
	for i := range 200 {
		name := fmt.Sprintf("p%d", i)
		w.Pod(newPod(name), Watched, second(0.5))
		switch i % 4 {
		case 0:
			w.Pod(newPod(name, readyAt(5)), Watched, second(5))
		case 1:
			w.Pod(newPod(name, terminating(0, 3)), Watched, second(3))
			w.Pod(newPod(name, terminating(0, 3)), Gone, second(4))
		case 2:
			w.Pod(newPod(name), Gone, second(4))
		}
	}
	w.until(700)
	total := map[record.Act]int{}
	for of, n := range w.Counts().Acts {
		if of.Outcome == verdict.Open {
			t.Errorf("%s: %d open", of.Act, n)
		}
		total[of.Act] += n
	}
	if total[record.Creation] != 200 || total[record.Deletion] != 50 || len(w.judged) != 250 {
		t.Errorf("%v, %d judged", total, len(w.judged))
	}
}

// BenchmarkMemoryOfSettledPods reports the bytes per settled pod.
func BenchmarkMemoryOfSettledPods(b *testing.B) {
	const pods = 100_000
	for range b.N {
		var before, after runtime.MemStats
		w := newWorld(Config{})
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range pods {
			p := newPod(fmt.Sprintf("deployment-%d-5d4f8c7b9d-abcde", i), readyAt(5))
			p.UID = types.UID(fmt.Sprintf("5c1b7f0e-0000-4000-8000-%012d", i))
			w.Pod(p, Watched, second(5))
			if i%1000 == 0 {
				w.turn()
				w.judged = nil
			}
		}
		w.turn()
		w.judged = nil
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/pods, "B/pod")
		runtime.KeepAlive(w)
	}
}

// The program itself was stopped for less than the time in which leaders renew their Leases: what it reads after that may
// have happened before the deadline.
func TestStopped(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a", bound), 0)
	for s := range 59 {
		w.until(float64(s))
		w.Tick(second(float64(s)))
	}
	w.Lease("kube-scheduler", false, second(62.1)) // from its stream before the pod from another
	w.now = 62
	w.turn()
	w.Pod(newPod("a", readyAt(59)), Watched, second(62.2))
	w.Tick(second(62.3))
	w.now = 63
	w.turn()
	w.until(80)
	if got := w.outcomes(); got != "creation unknown" {
		t.Error(got)
	}
}
