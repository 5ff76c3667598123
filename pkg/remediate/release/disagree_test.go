package release

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The witnesses of a world, each of which can be blind on its own.
const (
	kubelet = "kubelet"
	list    = "list" // of the apiserver
	byName  = "name" // the apiserver, GET of one pod
)

// disagree separates the witnesses: each knows every known pod except those it is blind for.
func (w *world) disagree() {
	w.blind = map[string]map[string]bool{kubelet: {}, list: {}, byName: {}}
	w.Host.Kubelet.Pods = w.seenBy(kubelet, w.Host.Kubelet.Pods)
	all := w.Host.Cluster.Pods
	w.Host.Cluster.Pods = w.seenBy(list, all)
	named := w.seenBy(byName, all)
	w.Host.Cluster.Pod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		pods, err := named(ctx)
		if err != nil {
			return nil, err
		}
		for _, pod := range pods {
			// as tests name sandboxes and pods
			if pod.Namespace == namespace && strings.HasSuffix(name, string(pod.UID)[:8]) {
				return &pod, nil
			}
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
}

func (w *world) seenBy(who string, pods func(context.Context) ([]corev1.Pod, error)) func(context.Context) (
	[]corev1.Pod, error) {
	return func(ctx context.Context) ([]corev1.Pod, error) {
		all, err := pods(ctx)
		return slices.DeleteFunc(all, func(p corev1.Pod) bool { return w.blind[who][string(p.UID)] }), err
	}
}

// hideOthers makes a witness blind for all bystanders.
func (w *world) hideOthers(who string) {
	w.blind[who][w.living] = true
	for _, pod := range slices.Concat(w.beside.Kubelet, w.beside.Cluster) {
		w.blind[who][string(pod.UID)] = true
	}
}

// If the witnesses disagree about a pod, or kubelet lacks a pod that the apiserver lists, no object of it is released.
func TestWitnessesDisagree(t *testing.T) {
	for name, bend := range map[string]func(w *world, uid string){
		"only kubelet knows it":       func(w *world, uid string) { w.blind[list][uid] = true },
		"only the apiserver lists it": func(w *world, uid string) { w.blind[kubelet][uid] = true },
		"kubelet has no other pod":    func(w *world, uid string) { delete(w.known, uid); w.hideOthers(kubelet) },
		"the list has no other pod":   func(w *world, uid string) { delete(w.known, uid); w.hideOthers(list) },
		"neither has any pod": func(w *world, uid string) {
			w.known = nil
			w.hideOthers(kubelet)
			w.hideOthers(list)
		},
		"kubelet loses it in the midst": func(w *world, uid string) {
			delete(w.known, uid)
			w.onConfirm = func(int) { w.hideOthers(kubelet) }
		},
		"the list loses others in the midst": func(w *world, uid string) {
			delete(w.known, uid)
			w.onConfirm = func(int) { w.hideOthers(list) }
		},
		"the list has it in the midst": func(w *world, uid string) {
			w.blind[kubelet][uid], w.blind[list][uid] = true, true
			w.onConfirm = func(int) { w.blind[list][uid] = false }
		},
		"kubelet has it in the midst": func(w *world, uid string) {
			w.blind[kubelet][uid], w.blind[list][uid] = true, true
			w.onConfirm = func(int) { w.blind[kubelet][uid] = false }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			uid := mutatetest.UID(t)
			w.known[uid] = true
			w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
			w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
			bend(w, uid)
			outcome := w.release()
			for _, p := range outcome.Pods {
				for _, s := range p.Steps {
					if s.Result == Released {
						t.Errorf("released %s %s", s.Kind, s.ID)
					}
				}
			}
			if left := w.left(uid); len(left) != 2 {
				t.Errorf("left: %q\n%s", left, describe(outcome))
			}
		})
	}
}

// A running pod that both kubelet and the apiserver's list lack keeps running.
func TestRunningPodIsKept(t *testing.T) {
	w, c := runtimeWorld(t)
	uid := mutatetest.UID(t)
	w.Cgroups(w.living, "")
	w.Cgroups(uid, "")
	w.sandboxed(c, uid)
	w.known[uid] = true
	w.blind[kubelet][uid], w.blind[list][uid] = true, true
	for range 5 {
		outcome := w.release()
		if len(outcome.Pods) > 0 {
			t.Fatal(describe(outcome))
		}
	}
	for _, o := range w.inspect().Objects {
		if o.Pod.UID == uid && (o.Verdict != object.Live || o.Kind == object.Container &&
			o.Facts["state"] != "RUNNING") {
			t.Errorf("%s %s: %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
}

// Of two running pods one release takes one, whatever the report says.
func TestPlanTakesOneRunningPod(t *testing.T) {
	var report object.Report
	for _, uid := range []string{"c", "a", "b"} {
		report.Objects = append(report.Objects, object.Assessment{
			Object:  object.Object{Kind: object.Process, ID: uid, Pod: object.Pod{UID: uid}},
			Verdict: object.Leftover, Running: uid != "b",
		})
	}
	var got []string
	for _, step := range Plan(report, Policy{Settings: Settings{Mode: On, PodsPerHour: 2}}, finding.Timestamp{}) {
		got = append(got, step.Group+" "+step.Blocked)
	}
	want := []string{"a ", "b ", "c it has a running container, and pod a, which has one too, is released " +
		"first: one at a time"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
