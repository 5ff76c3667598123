package inspect

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
)

// optingOut is an inspector that knows which pods are opted out.
func (n *node) optingOut(selectors ...string) *Inspector {
	return n.inspector(func(s *object.Settings) { s.OptOutPods = selectors })
}

// A pod's opt-out is known while any object of it exists: by its sandbox, which keeps the pod's labels and annotations,
// and after that by the history. Without either it is unknown.
func TestOptOutIsRemembered(t *testing.T) {
	never, database := map[string]string{optout.Annotation: "never"}, map[string]string{"app": "database"}
	for name, test := range map[string]struct {
		selectors           []string
		annotations, labels map[string]string
		sandbox, kubelet    bool // who has them
		want                string
		known               bool
	}{
		"annotation, of the sandbox": {nil, never, nil, true, false, optout.By, true},
		"annotation, of kubelet":     {nil, never, nil, false, true, optout.By, true},
		"labels, of the sandbox":     {[]string{"app in (database,queue)"}, nil, database, true, false, "its labels match", true},
		"labels, of kubelet":         {[]string{"a=b", "app=database"}, nil, database, false, true, "its labels match", true},
		"other labels":               {[]string{"app=queue"}, nil, database, true, false, "", true},
		"a selector nobody can read": {[]string{"app in ("}, nil, database, true, false, "its labels match", true},
		"nobody has seen it":         {[]string{"app=database"}, never, database, false, false, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.PodDir(dead)
			if test.sandbox {
				n.Sandbox(dead, deadSandbox)
				n.Sandboxes[len(n.Sandboxes)-1].Labels = test.labels
				n.Sandboxes[len(n.Sandboxes)-1].Annotations = test.annotations
			}
			if test.kubelet {
				n.Add(dead, "db")
				pod := &n.Kubelet[len(n.Kubelet)-1]
				pod.Labels, pod.Annotations = test.labels, test.annotations
			}
			var history object.History
			pass := func(stage string) {
				t.Helper()
				report, next := n.optingOut(test.selectors...).Pass(t.Context(), history) // only the history is kept
				history = next
				n.After(time.Minute)
				found := 0
				for _, o := range report.Objects {
					if o.Pod.UID == living && o.OptOut != "" {
						t.Errorf("%s: the other pod is opted out: %s", stage, o.OptOut)
					}
					if o.Pod.UID != dead {
						continue
					}
					found++
					if (o.OptOut == "") != (test.want == "") || !strings.HasPrefix(o.OptOut, test.want) ||
						o.LabelsKnown != test.known {
						t.Errorf("%s: %s: %q (%v), want %q", stage, o.Kind, o.OptOut, o.LabelsKnown, test.want)
					}
				}
				if found == 0 {
					t.Errorf("%s: nothing of the pod", stage)
				}
			}
			pass("seen")
			n.Remove(dead)
			pass("deleted")
			n.Sandboxes, n.Containers, n.Records, n.Leases = nil, nil, nil, nil
			pass("its sandbox is gone")
			n.NodeObject.Status.NodeInfo.BootID = "another"
			n.Now.Boot = "another"
			pass("after a boot")
		})
	}
}

// An annotation removed while the pod lived no longer counts, nor does a selector removed from the configuration; a pod
// without objects is forgotten.
func TestOptOutIsForgotten(t *testing.T) {
	n := newNode(t)
	n.PodDir(living)
	pod := &n.Kubelet[0]
	history, selectors := object.History{}, []string(nil)
	pass := func(want string, remembered bool) {
		t.Helper()
		report, next := n.optingOut(selectors...).Pass(t.Context(), history)
		history = next
		n.After(time.Minute)
		i := slices.IndexFunc(report.Objects, func(o object.Assessment) bool { return o.Pod.UID == living })
		if i < 0 || !strings.HasPrefix(report.Objects[i].OptOut, want) || (report.Objects[i].OptOut == "") != (want == "") {
			t.Errorf("%+v, want %q", report.Objects, want)
		}
		if _, ok := history[optout.Key(living)]; ok != remembered {
			t.Errorf("remembered: %v, %+v", ok, history)
		}
	}
	pass("", false)
	pod.Annotations = map[string]string{optout.Annotation: ""}
	pass(optout.By, true)
	if n := len(history) - history.Memories(); n != 0 {
		t.Errorf("%d entries keep the node from resting", n)
	}
	pod.Annotations, pod.Labels = nil, map[string]string{"app": "database"}
	pass("", false)
	selectors = []string{"app=database"}
	pass("its labels match", true)
	kept := slices.Clone(n.Kubelet)
	n.Kubelet = nil
	pass("its labels match", true)
	selectors = []string{"app=queue"}
	n.Cluster = nil
	pass("", false) // its labels at its deletion are unknown
	n.Kubelet = kept
	selectors = []string{"app=database"}
	pass("its labels match", true)
	n.Remove(living)
	for _, failure := range []error{errors.New("no answer"), nil} {
		n.RuntimeErr = failure // then objects of it may have been missed
		_, history = n.optingOut(selectors...).Pass(t.Context(),
			object.History{optout.Key(other): object.Sighting{Identity: object.Identity{Names: map[string]string{"optOut": optout.By}}}})
		if _, ok := history[optout.Key(other)]; ok != (failure != nil) {
			t.Errorf("a pod of which nothing is left, %v: %v", failure, history)
		}
	}
}
