package condition

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

var diskNaming = finding.Condition{Type: "ReadonlyFilesystem", ReadyType: "StorageReady",
	HealthyReason: "FilesystemIsNotReadOnly", HealthyMessage: "Filesystem is not read-only"}

func testConfig(node Node) Config {
	return Config{
		Node: node, Conditions: map[string]finding.Condition{"disk": diskNaming, reporttest.Check: {Type: "Suite"}},
		Rand: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler),
	}
}

func shownLine(c *corev1.NodeCondition) string {
	if c == nil {
		return "none"
	}
	return strings.Join([]string{string(c.Status), c.Reason, c.Message,
		c.LastTransitionTime.UTC().Format(time.TimeOnly)}, " | ")
}

// at formats a time as shownLine does.
func at(t time.Time) string { return t.UTC().Format(time.TimeOnly) }

func old(status corev1.ConditionStatus, reason string, ago time.Duration) corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: "ReadonlyFilesystem", Status: status, Reason: reason, Message: "before",
		LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)),
		LastHeartbeatTime:  metav1.NewTime(time.Now().Add(-ago)),
	}
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		node := reporttest.NewNode()
		return reporttest.Subject{
			Reporter: New(testConfig(node)), Sink: &node.Fault,
			Reports: func() []string {
				if c := node.Shown("Suite"); c != nil {
					return []string{c.Reason}
				}
				return nil
			},
		}
	})
}

func TestFaultIsShownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		time.Sleep(100 * time.Millisecond)
		want := "True | Ext4Error | thing 0 is Ext4Error | " + at(time.Now())
		if diff := cmp.Diff(want, shownLine(node.Shown("ReadonlyFilesystem"))); diff != "" {
			t.Error(diff)
		}
		if node.Reads() != 1 || len(node.Patches()) != 1 {
			t.Errorf("%d reads and %d patches, want 1 and 1", node.Reads(), len(node.Patches()))
		}

		// Ten more changes within a second cause one more patch, and no read.
		for range 5 {
			time.Sleep(70 * time.Millisecond)
			r.Update(w.Run("disk", nil))
			time.Sleep(70 * time.Millisecond)
			r.Update(w.Run("disk", nil, "XFSShutdown"))
		}
		time.Sleep(time.Second)
		if n := len(node.Patches()); n != 2 {
			t.Errorf("%d patches, want 2:\n%s", n, strings.Join(node.Patches(), "\n"))
		}
		if got := node.Shown("ReadonlyFilesystem").Reason; got != "XFSShutdown" {
			t.Errorf("shown reason %s, want XFSShutdown", got)
		}
		if node.Reads() != 1 {
			t.Errorf("%d reads, want 1", node.Reads())
		}
	})
}

func TestPatchIsWhatTheNodeNeeds(t *testing.T) {
	when := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	got, err := encode([]corev1.NodeCondition{{Type: "A", Status: "True", Reason: "R", LastTransitionTime: when}},
		[]string{"B"}, when)
	want := `{"status":{"conditions":[{"type":"A","status":"True","lastHeartbeatTime":"2026-01-02T03:04:05Z",` +
		`"lastTransitionTime":"2026-01-02T03:04:05Z","reason":"R","message":""},{"$patch":"delete","type":"B"}]}}`
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestStatuses(t *testing.T) {
	errBlind := errors.New("mountinfo: permission denied")
	for _, test := range []struct {
		name       string
		vocabulary Vocabulary
		observe    func(w *reporttest.World) (finding.State, []finding.Update)
		kind, want string
	}{
		{"faulty", Problem, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run("disk", nil, "A", "B", "C")
		},
			"ReadonlyFilesystem", "True | A | thing 0 is A (and 2 more)"},
		{"healthy", Problem, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Run("disk", nil) },
			"ReadonlyFilesystem", "False | FilesystemIsNotReadOnly | Filesystem is not read-only"},
		{"unknown", Problem, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run("disk", errBlind)
		},
			"ReadonlyFilesystem", "Unknown | CheckCouldNotTell | mountinfo: permission denied"},
		{"not applicable", Problem, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run("disk", finding.NotApplicable("no disk"))
		}, "ReadonlyFilesystem", "none"},
		{"no observation", Problem, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.State(), nil
		},
			"ReadonlyFilesystem", "Unknown | CheckCouldNotTell | no conclusive observation yet"},
		{"faulty, ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run("disk", nil, "A")
		},
			"StorageReady", "False | A | thing 0 is A"},
		{"healthy, ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run("disk", nil)
		},
			"StorageReady", "True | FilesystemIsNotReadOnly | Filesystem is not read-only"},
		{"no word in the ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Run(reporttest.Check, nil, "A")
		}, "Suite", "True | A | thing 0 is A"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := reporttest.NewNode()
				c := testConfig(node)
				c.Vocabulary = test.vocabulary
				r := New(c)
				reporttest.Start(t, r)
				r.Update(test.observe(reporttest.NewWorld()))
				time.Sleep(4 * time.Minute)
				got, _, _ := cutLast(shownLine(node.Shown(test.kind)))
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// cutLast takes the time off a line.
func cutLast(line string) (before, after string, found bool) {
	i := strings.LastIndex(line, " | ")
	if i < 0 {
		return line, "", false
	}
	return line[:i], line[i:], true
}

func TestOthersAreNeverTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := corev1.NodeCondition{Type: "Ready", Status: "True", Reason: "KubeletReady",
			Message: "kubelet is posting ready status"}
		deadlock := corev1.NodeCondition{Type: "KernelDeadlock", Status: "False", Reason: "KernelHasNoDeadlock",
			Message: "npd's own"}
		node, store, w := reporttest.NewNode(ready, deadlock), reporttest.NewStore(), reporttest.NewWorld()
		c := testConfig(node)
		c.Store = store
		r := New(c)
		stop := reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		time.Sleep(time.Hour * 3)
		stop()

		// A run without the check: its condition is removed, the others stay.
		delete(c.Conditions, "disk")
		r = New(c)
		reporttest.Start(t, r)
		r.Update(finding.State{}, nil)
		time.Sleep(time.Hour * 3)
		for _, want := range []corev1.NodeCondition{ready, deadlock} {
			if diff := cmp.Diff(&want, node.Shown(string(want.Type))); diff != "" {
				t.Error(diff)
			}
		}
		if got := node.Shown("ReadonlyFilesystem"); got != nil {
			t.Errorf("a condition whose check is gone is still shown: %s", shownLine(got))
		}
		for _, patch := range node.Patches() {
			if strings.Contains(patch, "KernelDeadlock") || strings.Contains(patch, `"Ready"`) {
				t.Errorf("patch names another's condition: %s", patch)
			}
		}
	})
}

// node-problem-detector writes ReadonlyFilesystem too. We must not remove a condition that we have never written.
func TestNotOursIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(old("True", "FilesystemIsReadOnly", time.Hour)), reporttest.NewWorld()
		c := testConfig(node)
		c.Store = reporttest.NewStore()
		r := New(c)
		reporttest.Start(t, r)
		r.Update(w.Run("disk", finding.NotApplicable("no disk")))
		time.Sleep(3 * time.Hour)
		if got := node.Shown("ReadonlyFilesystem"); got == nil || got.Reason != "FilesystemIsReadOnly" {
			t.Errorf("another's condition is %s", shownLine(got))
		}
	})
}

func TestNotApplicableAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "Ext4Error"))
		time.Sleep(time.Minute)
		r.Update(w.Run("disk", finding.NotApplicable("the disk was taken out")))
		time.Sleep(2 * time.Second)
		if got := node.Shown("ReadonlyFilesystem"); got != nil {
			t.Errorf("shown %s", shownLine(got))
		}
		r.Update(w.Run("disk", nil, "Ext4Error"))
		time.Sleep(2 * time.Second)
		if got := node.Shown("ReadonlyFilesystem"); got == nil {
			t.Error("not shown again")
		}
	})
}

// A reason that changes each second is written five times, then once a minute.
func TestReasonChurnIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Update(w.Run("disk", nil, "First"))
		moved := time.Now()
		time.Sleep(time.Second)
		for i := range 600 {
			r.Update(w.Run("disk", nil, "Reason"+string(rune('A'+i%26))))
			time.Sleep(time.Second)
		}
		if n := len(node.Patches()); n < 10 || n > 17 {
			t.Errorf("%d patches in ten minutes", n)
		}
		if got := node.Shown("ReadonlyFilesystem").LastTransitionTime.Time; at(got) != at(moved) {
			t.Errorf("lastTransitionTime %s, want %s", at(got), at(moved))
		}
	})
}

func TestChecksThatShareACondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		c := testConfig(node)
		c.Conditions = map[string]finding.Condition{"one": diskNaming, "two": diskNaming}
		r := New(c)
		reporttest.Start(t, r)
		shown := func() string { return shownLine(node.Shown("ReadonlyFilesystem")) }
		r.Update(w.Run("one", nil))
		r.Update(w.Run("two", nil, "Two"))
		began := time.Now()
		time.Sleep(time.Minute)
		r.Update(w.Run("one", nil, "One"))
		time.Sleep(time.Minute)
		r.Update(w.Run("two", nil)) // faulty without interruption
		time.Sleep(time.Minute)
		if diff := cmp.Diff("True | One | thing 0 is One | "+at(began), shown()); diff != "" {
			t.Error(diff)
		}
		r.Update(w.Run("one", nil))
		ended := time.Now()
		time.Sleep(time.Minute)
		if diff := cmp.Diff("False | FilesystemIsNotReadOnly | Filesystem is not read-only | "+at(ended),
			shown()); diff != "" {
			t.Error(diff)
		}
	})
}
