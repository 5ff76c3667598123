package condition

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// sawAs lets the reporter see the current node, under a UID.
func sawAs(r *Reporter, uid types.UID, n *reporttest.Node) {
	node := &corev1.Node{}
	node.UID = uid
	for _, name := range []string{"Ready", "ReadonlyFilesystem", "Suite"} {
		if c := n.Shown(name); c != nil {
			node.Status.Conditions = append(node.Status.Conditions, *c)
		}
	}
	r.Saw(node)
}

// The reporter corrects changes by others: soon during a fault, else once per round, and never with one write for each
// write of another writer.
func TestWhatOthersChangeIsPutRight(t *testing.T) {
	remove := func(n *reporttest.Node) { n.Set() }
	falsify := func(n *reporttest.Node) {
		n.Set(corev1.NodeCondition{Type: "ReadonlyFilesystem", Status: "Unknown", Reason: "Other"})
	}
	move := func(n *reporttest.Node) {
		c := *n.Shown("ReadonlyFilesystem")
		c.LastTransitionTime.Time = time.Now()
		n.Set(c)
	}
	for name, test := range map[string]struct {
		reasons []string
		change  func(*reporttest.Node)
		within  time.Duration
	}{
		"fault, removed":           {[]string{"Ext4Error"}, remove, 2*time.Minute + time.Second},
		"fault, another status":    {[]string{"Ext4Error"}, falsify, 2*time.Minute + time.Second},
		"fault, another time":      {[]string{"Ext4Error"}, move, 2*time.Minute + time.Second},
		"healthy, removed":         {nil, remove, 43 * time.Minute},
		"healthy, another's words": {nil, falsify, 43 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, w := reporttest.NewNode(), reporttest.NewWorld()
				c := testConfig(node)
				c.Refresh = 24 * time.Hour
				r := New(c)
				reporttest.Start(t, r)
				r.Update(w.Run("disk", nil, test.reasons...))
				time.Sleep(10 * time.Minute)
				sawAs(r, "one", node)
				time.Sleep(time.Minute)
				want := shownLine(node.Shown("ReadonlyFilesystem"))
				patches := len(node.Patches())
				test.change(node)
				sawAs(r, "one", node)
				time.Sleep(test.within)
				if got := shownLine(node.Shown("ReadonlyFilesystem")); got != want {
					t.Errorf("shown %s, want %s", got, want)
				}
				if _, shows := r.Seen(); shows == "1 conditions as believed" && name != "fault, another time" {
					t.Errorf("status says %q of another's change", shows)
				}
				for range 600 { // another writer writes each second
					test.change(node)
					sawAs(r, "one", node)
					time.Sleep(time.Second)
				}
				if n := len(node.Patches()) - patches; n > 7 || n < 1 {
					t.Errorf("%d patches in ten minutes", n)
				}
			})
		})
	}
}

// A Node that registers again under its name has no conditions of ours: all are written at once, whatever their status,
// with their old transition times.
func TestNodeRegistersAgain(t *testing.T) {
	for name, reasons := range map[string][]string{"fault": {"Ext4Error"}, "peace": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, w := reporttest.NewNode(), reporttest.NewWorld()
				r := New(testConfig(node))
				reporttest.Start(t, r)
				r.Update(w.Run("disk", nil, reasons...))
				time.Sleep(10 * time.Minute)
				sawAs(r, "one", node)
				time.Sleep(time.Minute)
				want := shownLine(node.Shown("ReadonlyFilesystem"))
				node.Set()
				sawAs(r, "two", node)
				time.Sleep(2 * time.Second)
				if got := shownLine(node.Shown("ReadonlyFilesystem")); got != want {
					t.Errorf("shown %s, want %s", got, want)
				}
			})
		})
	}
}

// If the watch still shows the state before our own write, the reporter does not write again.
func TestStaleSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil))
		time.Sleep(time.Hour)
		before := reporttest.NewNode(*node.Shown("ReadonlyFilesystem"))
		r.Update(w.Run("disk", nil, "Ext4Error"))
		time.Sleep(time.Second)
		patches := len(node.Patches())
		sawAs(r, "one", before)
		time.Sleep(time.Second)
		sawAs(r, "one", node)
		time.Sleep(10 * time.Second)
		if n := len(node.Patches()) - patches; n != 0 {
			t.Errorf("%d patches for what was there already", n)
		}
	})
}
