package taint

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// saw lets the reporter see the current node.
func saw(t *testing.T, r *Reporter, n *fakeTaints) {
	t.Helper()
	node, err := n.GetNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.Saw(node)
}

// While the fault lasts, so does the taint, whoever removes or changes it, and also on a Node after it registers again.
// The reporter does not answer each write of another writer with one of its own.
func TestTaintIsSetAgain(t *testing.T) {
	ours := func(t corev1.Taint) bool { return t.Key == DefaultKey }
	for name, change := range map[string]func(*corev1.Node){
		"taken off": func(n *corev1.Node) { n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, ours) },
		"weakened": func(n *corev1.Node) {
			n.Spec.Taints[slices.IndexFunc(n.Spec.Taints, ours)].Effect = corev1.TaintEffectPreferNoSchedule
		},
		"another Node of its name": func(n *corev1.Node) {
			n.UID, n.Spec.Taints = "two", slices.DeleteFunc(n.Spec.Taints, ours)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, nil, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
				r.Update(w.Run("disk", nil, "DiskReadonly"))
				shows(t, n, time.Minute, readonly)
				n.Change(func(n *corev1.Node) { n.UID = "one" })
				saw(t, r, n)
				shows(t, n, time.Minute, readonly)
				n.Change(change)
				saw(t, r, n)
				if at, seen := r.Seen(); at != time.Now() || seen == readonly { // not what the reporter has sent
					t.Errorf("at %s it has seen %q", at, seen)
				}
				shows(t, n, 2*time.Minute, readonly)
				saw(t, r, n)
				if _, seen := r.Seen(); seen != readonly {
					t.Errorf("it has seen %q", seen)
				}
				_, before := n.Shown()
				for range 600 {
					if _, i := n.Shown(); i > 0 {
						n.Change(func(n *corev1.Node) { n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, ours) })
					}
					saw(t, r, n)
					time.Sleep(time.Second)
				}
				if _, after := n.Shown(); after-before > 6 || after == before {
					t.Errorf("%d writes in ten minutes", after-before)
				}
			})
		})
	}
}

// A taint of our key that somebody sets while there is no fault is theirs.
func TestTaintOfAnotherIsLeft(t *testing.T) {
	run(t, nil, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		r.Update(w.Run("disk", nil))
		shows(t, n, time.Minute)
		n.Change(func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: DefaultKey, Effect: corev1.TaintEffectNoSchedule})
		})
		saw(t, r, n)
		shows(t, n, time.Hour, DefaultKey+":NoSchedule")
	})
}
