package release

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// A static pod comes back with its UID between two inspections: no further object of it is touched, whichever step that
// is.
func TestPodReturnsBeforeAStep(t *testing.T) {
	for _, point := range []string{"intent: process", "intent: mount", "intent: cgroup", "intent: pod-directory"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			uid := strings.ReplaceAll(mutatetest.UID(t), "-", "") // in kubelet's format
			w.Shell(uid, w.Cgroups(uid, mutatetest.Hex(t, 64)), "echo ready; exec sleep 600")
			w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
			w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
			w.faultPoint = func(at string) error {
				if at == point {
					w.known[uid] = true
				}
				return nil
			}
			outcome := w.release()
			if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Stopped || !w.known[uid] {
				t.Fatal(describe(outcome))
			}
			kind := strings.TrimPrefix(point, "intent: ")
			for _, s := range outcome.Pods[0].Steps {
				if string(s.Kind) == kind && s.Result != Stopped {
					t.Errorf("%s %s is %s", s.Kind, s.ID, s.Result)
				}
			}
		})
	}
}
