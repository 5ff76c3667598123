package configmap_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// After a Node registers again, its ConfigMap is created at once, and belongs to the new Node: the old one is garbage
// collected with its owner.
func TestOwnedByTheNodeOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "one"}, reporttest.NewWorld()
		r := newReporter(c, condition.Config{})
		r.Update(w.Run("other", nil))
		r.Update(w.Run(reporttest.Check, nil))
		reporttest.Start(t, r)
		time.Sleep(10 * time.Minute)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "one"}}
		r.Saw(node)
		time.Sleep(time.Minute)
		applied := len(c.objects())
		r.Saw(&corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "two"}})
		time.Sleep(2 * time.Second)
		if m, conditions := c.last(t); len(c.objects()) != applied+1 || m.OwnerReferences[0].UID != "two" ||
			len(conditions) != 2 {
			t.Errorf("%d applies, of %v", len(c.objects())-applied, m.OwnerReferences)
		}
	})
}

// A ConfigMap that somebody deletes during a fault is back within two minutes. If it still exists, applying the same
// again changes nothing.
func TestSentAgainWhileFaulty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := &cluster{uid: "one"}, reporttest.NewWorld()
		r := newReporter(c, condition.Config{})
		r.Update(w.Run("other", nil))
		r.Update(w.Run(reporttest.Check, nil, "Broken"))
		reporttest.Start(t, r)
		time.Sleep(2 * time.Second)
		objects := c.objects()
		first, applied := objects[len(objects)-1], len(objects)
		time.Sleep(10*time.Minute + time.Second)
		if n := len(c.objects()) - applied; n != 5 {
			t.Errorf("%d applies in ten minutes, want 5", n)
		}
		for _, again := range c.objects()[applied:] {
			if diff := cmp.Diff(first, again); diff != "" {
				t.Error(diff)
			}
		}
		c.Fail(errors.New("away"))
		time.Sleep(10 * time.Minute)
		c.Mend()
		time.Sleep(7 * time.Minute)
		r.Update(w.Run(reporttest.Check, nil))
		time.Sleep(5 * time.Minute)
		applied = len(c.objects())
		time.Sleep(20 * time.Minute)
		if n := len(c.objects()) - applied; n > 1 {
			t.Errorf("%d applies in peace", n)
		}
	})
}

// The Node and the ConfigMap show the same transition time of a condition, even if the agent has lost its memory of one
// of them, or one was not or cannot be written.
func TestOneTransitionTime(t *testing.T) {
	for name, test := range map[string]struct{ loseNode, loseConfigMap, off, away bool }{
		"nothing is lost":           {},
		"lost of the Node":          {loseNode: true},
		"lost of the ConfigMap":     {loseConfigMap: true},
		"both are lost":             {loseNode: true, loseConfigMap: true},
		"the ConfigMap was off":     {off: true},
		"the Node is not reachable": {loseConfigMap: true, away: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, c, w := reporttest.NewNode(), &cluster{uid: "one"}, reporttest.NewWorld()
				stores := []*reporttest.Store{reporttest.NewStore(), reporttest.NewStore()}
				run := func(off bool, runs ...[]string) {
					first := condition.New(condition.Config{Node: node, Store: stores[0], Spread: -1, Started: w.Now(),
						Conditions: map[string]finding.Condition{reporttest.Check: {Type: "SuiteBroken"}}})
					second := newReporter(c, condition.Config{Store: stores[1], Moved: first.Moved, Started: w.Now()})
					stops := []func(){reporttest.Start(t, first), reporttest.Start(t, second)}
					for _, reasons := range runs {
						time.Sleep(time.Minute)
						state, updates := w.Run(reporttest.Check, nil, reasons...)
						if first.Update(state, updates); !off {
							second.Update(state, updates)
						}
						time.Sleep(10 * time.Minute)
					}
					stops[0]()
					stops[1]()
					c.node = []corev1.NodeCondition{*node.Shown("SuiteBroken")}
					w.Restart(nil) // the tracker has lost its memory in any case
				}
				broken := []string{"Broken"}
				run(false, broken)
				if test.off {
					run(true, nil, broken)
				}
				if test.loseNode {
					stores[0] = reporttest.NewStore()
				}
				if test.loseConfigMap {
					stores[1] = reporttest.NewStore()
				}
				if test.away {
					node.Fail(errors.New("away"))
				}
				run(false, broken)
				_, conditions := c.last(t)
				if a, b := node.Shown("SuiteBroken").LastTransitionTime, conditions["SuiteBroken"].LastTransitionTime; !a.Equal(&b) {
					t.Errorf("the Node says %s, the ConfigMap %s", a, b)
				}
			})
		})
	}
}
