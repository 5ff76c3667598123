package condition

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// TestRetire: Retire removes the conditions that the agent wrote, and those of an earlier agent that it only kept up to
// date; the others' stay.
func TestRetire(t *testing.T) {
	ready := corev1.NodeCondition{Type: "Ready", Status: "True", Reason: "KubeletReady",
		Message: "kubelet is posting ready status"}
	kept := old("False", diskNaming.HealthyReason, 0)
	kept.Message = diskNaming.HealthyMessage
	for name, before := range map[string][]corev1.NodeCondition{
		"written by this agent":   nil,
		"kept from one before":    {kept},
		"overwritten by this one": {old("True", "Ext4Error", 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for i := range before { // the clock of a bubble starts in the year 2000
					before[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
				}
				node, store, w := reporttest.NewNode(append(before, ready)...), reporttest.NewStore(),
					reporttest.NewWorld()
				c := testConfig(node)
				c.Store = store
				delete(c.Conditions, reporttest.Check)
				r := New(c)
				stop := reporttest.Start(t, r)
				r.Update(w.Run("disk", nil))
				time.Sleep(2 * time.Minute)
				stop()
				for i, want := range [][]string{{"ReadonlyFilesystem"}, nil} {
					got, err := Retire(t.Context(), node, store)
					if diff := cmp.Diff(want, got); diff != "" || err != nil {
						t.Errorf("call %d: %v\n%s", i+1, err, diff)
					}
				}
				if got := node.Shown("ReadonlyFilesystem"); got != nil {
					t.Errorf("still shown: %s", shownLine(got))
				}
				if diff := cmp.Diff(&ready, node.Shown("Ready")); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
