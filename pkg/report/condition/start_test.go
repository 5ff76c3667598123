package condition

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// TestAdoption starts an agent that has lost its state on a node that shows a condition.
func TestAdoption(t *testing.T) {
	observe := func(reasons ...string) func(r *Reporter, w *reporttest.World) {
		return func(r *Reporter, w *reporttest.World) { r.Update(w.Run("disk", nil, reasons...)) }
	}
	blindThen := func(reasons ...string) func(r *Reporter, w *reporttest.World) {
		return func(r *Reporter, w *reporttest.World) {
			r.Update(w.Run("disk", errors.New("not yet")))
			time.Sleep(20 * time.Second)
			r.Update(w.Run("disk", nil, reasons...))
		}
	}
	for _, test := range []struct {
		name    string
		shown   corev1.ConditionStatus
		update  func(r *Reporter, w *reporttest.World)
		want    string
		adopted bool // the time is that of the node
	}{
		{"still faulty", "True", observe("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error", true},
		{"still healthy", "False", observe(), "False | FilesystemIsNotReadOnly | Filesystem is not read-only", true},
		{"mended meanwhile", "True", observe(), "False | FilesystemIsNotReadOnly | Filesystem is not read-only", false},
		{"broken meanwhile", "False", observe("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error", false},
		{"blind at first, still faulty", "True", blindThen("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error",
			true},
		{"blind at first, still healthy", "False", blindThen(),
			"False | FilesystemIsNotReadOnly | Filesystem is not read-only", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, w := reporttest.NewNode(old(test.shown, "Before", time.Hour)), reporttest.NewWorld()
				adopted := node.Shown("ReadonlyFilesystem").LastTransitionTime.Time
				c := testConfig(node)
				c.Started = w.Now()
				r := New(c)
				reporttest.Start(t, r)
				time.Sleep(time.Second)
				test.update(r, w)
				moved := time.Now()
				time.Sleep(10 * time.Minute)
				for _, patch := range node.Patches() {
					if strings.Contains(patch, "Unknown") &&
						strings.Contains(patch, "ReadonlyFilesystem\",\"status\":\"Unknown") {
						t.Errorf("it was Unknown in between: %s", patch)
					}
				}
				want := test.want + " | " + at(moved)
				if test.adopted {
					want = test.want + " | " + at(adopted)
				}
				if diff := cmp.Diff(want, shownLine(node.Shown("ReadonlyFilesystem"))); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A check that stays blind after a start without saved state becomes Unknown in the end: the old status cannot be kept
// for ever.
func TestGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(old("False", "Before", time.Hour)), reporttest.NewWorld()
		c := testConfig(node)
		c.Spread = -1
		r := New(c)
		reporttest.Start(t, r)
		r.Update(w.Run("disk", errors.New("blind")))
		time.Sleep(DefaultGrace - time.Second)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionFalse {
			t.Errorf("within the grace it is %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionUnknown {
			t.Errorf("after the grace it is %s", got)
		}
	})
}

// Ten thousand agents are restarted: an agent without changes does not write before its refresh.
func TestRestartWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w, store := reporttest.NewNode(), reporttest.NewWorld(), reporttest.NewStore()
		c := testConfig(node)
		c.Store = store
		r := New(c)
		stop := reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		r.Update(w.Run(reporttest.Check, nil))
		time.Sleep(10 * time.Minute)
		stop()
		before := len(node.Patches())
		r = New(c)
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		r.Update(w.Run(reporttest.Check, nil))
		time.Sleep(29 * time.Minute)
		if n := len(node.Patches()); n != before {
			t.Errorf("%d patches more", n-before)
		}
		time.Sleep(2 * time.Minute) // the first refresh is at half an hour here, the next ones after an hour
		if n := len(node.Patches()); n != before+1 {
			t.Errorf("%d patches more, want the refresh", n-before)
		}
		time.Sleep(10 * time.Hour)
		if n := len(node.Patches()); n != before+11 {
			t.Errorf("%d patches more in ten hours and a half, want 11", n-before)
		}
		heartbeat := node.Shown("ReadonlyFilesystem").LastHeartbeatTime.Time
		if age := time.Since(heartbeat); age > time.Hour {
			t.Errorf("heartbeat is %s old", age)
		}
	})
}

func TestStartUpIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil))
		time.Sleep(59 * time.Second) // half of the spread is a minute
		if n := len(node.Attempts()); n != 0 {
			t.Errorf("%d requests before the spread", n)
		}
		time.Sleep(2 * time.Second)
		if n := len(node.Patches()); n != 1 {
			t.Errorf("%d patches, want 1", n)
		}
	})
}
