package release

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// networkCensus lists all network objects of pods.
func (w *world) networkCensus() mutatetest.Census {
	w.t.Helper()
	return w.Census().Network(w.Dir)
}

// attachPod gives a pod a network namespace and a real attachment, and returns the namespace.
func (w *world) attachPod(uid string) (netns string, attached mutatetest.Attached) {
	w.t.Helper()
	netns = w.MountNetns(filepath.Join(w.Dir, "netns", "cni-"+mutatetest.UID(w.t))).Path
	return netns, w.Attach(uid, netns)
}

// newNetworkWorld is a world in its own network namespace, with the network of a living pod.
func newNetworkWorld(t *testing.T) *world {
	t.Helper()
	hosttest.PrivateNetwork(t)
	w := newWorld(t)
	w.attachPod(w.living)
	return w
}

func results(outcome Outcome) map[object.Kind][]Result {
	all := map[object.Kind][]Result{}
	for _, pod := range outcome.Pods {
		for _, step := range pod.Steps {
			all[step.Kind] = append(all[step.Kind], step.Result)
		}
	}
	return all
}

// CNI DEL removes the file that names the owner of the network namespace. The namespace must go nevertheless, and the
// node must be as it was before the pod came.
func TestReleaseEndsTheNetwork(t *testing.T) {
	w := newNetworkWorld(t)
	before := w.networkCensus()
	dead := mutatetest.UID(t)
	w.attachPod(dead)
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Error(describe(outcome))
	}
	want := map[object.Kind][]Result{object.CNIAttachment: {Released}, object.Netns: {Released},
		object.Link: {Vanished}}
	if diff := cmp.Diff(want, results(outcome)); diff != "" {
		t.Error(diff, describe(outcome))
	}
	if diff := cmp.Diff(before, w.networkCensus()); diff != "" {
		t.Errorf("the node is not as it was: %s", diff)
	}
	for _, o := range w.inspect().Objects {
		if o.Verdict != object.Live && o.Verdict != object.Foreign {
			t.Errorf("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
}
