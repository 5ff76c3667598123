package release

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// assessmentOf is the assessment that a lister makes of a process.
func assessmentOf(p mutate.Process) object.Assessment {
	return object.Assessment{Object: object.Object{
		Kind: object.Process, ID: strconv.Itoa(p.PID), Pod: object.Pod{UID: p.UID},
		Identity: object.Identity{Process: object.ProcessID{PID: p.PID, StartTime: p.StartTime}},
	}}
}

// A process gets its grace period to end by itself; only then it is killed. All are signaled together.
func TestProcessHasItsGrace(t *testing.T) {
	w := newWorld(t)
	w.settings.ProcessGrace = 20 * time.Second
	uid := mutatetest.UID(t)
	last := filepath.Join(w.Dir, "last-words")
	w.Shell(uid, w.Cgroups(uid, ""), "trap 'sleep 0.5; echo done > "+last+
		"; exit' TERM; echo ready; while :; do sleep 0.1; done")
	began := time.Now()
	outcome := w.release()
	if got, err := os.ReadFile(last); err != nil || string(got) != "done\n" {
		t.Errorf("it did not get to end by itself: %q, %v: %s", got, err, describe(outcome))
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it has ended, and was waited for all the same: %s", took)
	}
}

// A process replaced by another one stops the pod before any later process is signaled.
func TestChangedProcessStopsTheRound(t *testing.T) {
	w := newWorld(t)
	uid := mutatetest.UID(t)
	cgroups := w.Cgroups(uid, "")
	other := w.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	p := w.Shell(uid, cgroups, "echo ready; while :; do sleep 0.1; done")
	reused := other
	reused.StartTime++
	action, _ := actions.All().On(object.Process)
	err := action.Prepare(t.Context(), w.runner().tools, []object.Assessment{assessmentOf(reused), assessmentOf(p)})
	if !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("%v", err)
	}
	for _, p := range []mutate.Process{other, p} {
		if ended, err := w.Mutator.AwaitEnd(t.Context(), p, 300*time.Millisecond); ended || err != nil {
			t.Errorf("process %d: ended %v, %v", p.PID, ended, err)
		}
	}
}

// The driver is not configured. The living pod shows which tree our kubelet uses; objects in the other tree are another
// kubelet's and stay.
func TestReleaseInTheTreeOfOurDriverOnly(t *testing.T) {
	w := newWorld(t, func(p *host.Paths) { p.CgroupDriver = "" })
	uid, theirs := mutatetest.UID(t), mutatetest.UID(t)
	w.Cgroups(w.living, "")
	ours := w.Cgroups(uid, "")
	w.Shell(uid, ours, "echo ready; while :; do sleep 0.1; done")
	id := strings.ReplaceAll(strings.Trim(w.Host.Paths.CgroupRoot, "/"), "-", "_")
	slice := filepath.Join(id+".slice", id+"-kubepods.slice", id+"-kubepods-pod"+strings.ReplaceAll(theirs, "-", "_")+
		".slice")
	var others []string
	for _, dir := range ours {
		point := strings.TrimSuffix(dir, filepath.Join(w.Host.Paths.CgroupRoot, "kubepods/besteffort/pod"+uid))
		made := w.Mkdir(filepath.Join(point, slice))
		for _, around := range []string{filepath.Dir(filepath.Dir(made)), filepath.Dir(made), made} { // innermost last
			t.Cleanup(func() { // the killed process leaves it shortly after its parent was notified
				mutatetest.Await(t, func() bool { err := os.Remove(around); return err == nil || os.IsNotExist(err) })
			})
		}
		if !strings.Contains(point, "cpuset") {
			others = append(others, made)
		}
	}
	foreign := w.Shell(theirs, others, "echo ready; while :; do sleep 0.1; done")
	outcome := w.release()
	for _, dir := range ours {
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %s", dir, describe(outcome))
		}
	}
	for _, dir := range others {
		if _, err := os.Lstat(dir); err != nil {
			t.Error(err)
		}
	}
	if ended, err := w.Mutator.AwaitEnd(t.Context(), foreign, 300*time.Millisecond); ended || err != nil {
		t.Errorf("the other kubelet's process: ended %v, %v", ended, err)
	}
	if slices.ContainsFunc(outcome.Pods, func(p PodOutcome) bool { return p.Group == theirs }) {
		t.Error(describe(outcome))
	}
}
