package condition

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

var diskNaming = report.Naming{Type: "ReadonlyFilesystem", ReadyType: "StorageReady", HealthyReason: "FilesystemIsNotReadOnly", HealthyMessage: "Filesystem is not read-only"}

func testConfig(node Node) Config {
	return Config{
		Node: node, Conditions: map[string]report.Naming{"disk": diskNaming, reporttest.Check: {Type: "Suite"}},
		Rand: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler),
	}
}

func shownLine(c *corev1.NodeCondition) string {
	if c == nil {
		return "none"
	}
	return strings.Join([]string{string(c.Status), c.Reason, c.Message, c.LastTransitionTime.UTC().Format(time.TimeOnly)}, " | ")
}

// at words a moment as shownLine does.
func at(t time.Time) string { return t.UTC().Format(time.TimeOnly) }

func old(status corev1.ConditionStatus, reason string, ago time.Duration) corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: "ReadonlyFilesystem", Status: status, Reason: reason, Message: "before",
		LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)), LastHeartbeatTime: metav1.NewTime(time.Now().Add(-ago)),
	}
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		node := reporttest.NewNode()
		return reporttest.Subject{
			Reporter: New(testConfig(node)), Sink: &node.Fault,
			Tells: func() []string {
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
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		time.Sleep(100 * time.Millisecond)
		want := "True | Ext4Error | thing 0 is Ext4Error | " + at(time.Now())
		if diff := cmp.Diff(want, shownLine(node.Shown("ReadonlyFilesystem"))); diff != "" {
			t.Error(diff)
		}
		if node.Reads() != 1 || len(node.Patches()) != 1 {
			t.Errorf("%d reads and %d patches, want 1 and 1", node.Reads(), len(node.Patches()))
		}

		// Ten more changes within a second make one more patch, and no read.
		for range 5 {
			time.Sleep(70 * time.Millisecond)
			r.Tell(w.Look("disk", nil))
			time.Sleep(70 * time.Millisecond)
			r.Tell(w.Look("disk", nil, "XFSShutdown"))
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
	got, err := encode([]corev1.NodeCondition{{Type: "A", Status: "True", Reason: "R", LastTransitionTime: when}}, []string{"B"}, when)
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
		look       func(w *reporttest.World) (finding.State, []finding.Update)
		kind, want string
	}{
		{"faulty", Problem, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Look("disk", nil, "A", "B", "C") },
			"ReadonlyFilesystem", "True | A | thing 0 is A (and 2 more)"},
		{"healthy", Problem, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Look("disk", nil) },
			"ReadonlyFilesystem", "False | FilesystemIsNotReadOnly | Filesystem is not read-only"},
		{"unknown", Problem, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Look("disk", errBlind) },
			"ReadonlyFilesystem", "Unknown | CheckCouldNotTell | mountinfo: permission denied"},
		{"not applicable", Problem, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Look("disk", finding.NotApplicable("no disk"))
		}, "ReadonlyFilesystem", "none"},
		{"not looked at", Problem, func(w *reporttest.World) (finding.State, []finding.Update) { return w.State(), nil },
			"ReadonlyFilesystem", "Unknown | CheckCouldNotTell | no conclusive look yet"},
		{"faulty, ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Look("disk", nil, "A") },
			"StorageReady", "False | A | thing 0 is A"},
		{"healthy, ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) { return w.Look("disk", nil) },
			"StorageReady", "True | FilesystemIsNotReadOnly | Filesystem is not read-only"},
		{"no word in the ready vocabulary", Ready, func(w *reporttest.World) (finding.State, []finding.Update) {
			return w.Look(reporttest.Check, nil, "A")
		}, "Suite", "True | A | thing 0 is A"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := reporttest.NewNode()
				c := testConfig(node)
				c.Vocabulary = test.vocabulary
				r := New(c)
				reporttest.Start(t, r)
				r.Tell(test.look(reporttest.NewWorld()))
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
		ready := corev1.NodeCondition{Type: "Ready", Status: "True", Reason: "KubeletReady", Message: "kubelet is posting ready status"}
		deadlock := corev1.NodeCondition{Type: "KernelDeadlock", Status: "False", Reason: "KernelHasNoDeadlock", Message: "npd's own"}
		node, store, w := reporttest.NewNode(ready, deadlock), reporttest.NewStore(), reporttest.NewWorld()
		c := testConfig(node)
		c.Store = store
		r := New(c)
		stop := reporttest.Start(t, r)
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		time.Sleep(time.Hour * 3)
		stop()

		// A run without the check: its condition goes, the others stay.
		delete(c.Conditions, "disk")
		r = New(c)
		reporttest.Start(t, r)
		r.Tell(finding.State{}, nil)
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

// node-problem-detector writes ReadonlyFilesystem too. What we have never written is not ours to remove.
func TestNotOursIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(old("True", "FilesystemIsReadOnly", time.Hour)), reporttest.NewWorld()
		c := testConfig(node)
		c.Store = reporttest.NewStore()
		r := New(c)
		reporttest.Start(t, r)
		r.Tell(w.Look("disk", finding.NotApplicable("no disk")))
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
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		time.Sleep(time.Minute)
		r.Tell(w.Look("disk", finding.NotApplicable("the disk was taken out")))
		time.Sleep(2 * time.Second)
		if got := node.Shown("ReadonlyFilesystem"); got != nil {
			t.Errorf("shown %s", shownLine(got))
		}
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		time.Sleep(2 * time.Second)
		if got := node.Shown("ReadonlyFilesystem"); got == nil {
			t.Error("not shown again")
		}
	})
}

// TestAdoption starts an agent that has lost its memory on a node that shows a condition.
func TestAdoption(t *testing.T) {
	look := func(reasons ...string) func(r *Reporter, w *reporttest.World) {
		return func(r *Reporter, w *reporttest.World) { r.Tell(w.Look("disk", nil, reasons...)) }
	}
	blindThen := func(reasons ...string) func(r *Reporter, w *reporttest.World) {
		return func(r *Reporter, w *reporttest.World) {
			r.Tell(w.Look("disk", errors.New("not yet")))
			time.Sleep(20 * time.Second)
			r.Tell(w.Look("disk", nil, reasons...))
		}
	}
	for _, test := range []struct {
		name    string
		shown   corev1.ConditionStatus
		tell    func(r *Reporter, w *reporttest.World)
		want    string
		adopted bool // the time is the node's
	}{
		{"still faulty", "True", look("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error", true},
		{"still healthy", "False", look(), "False | FilesystemIsNotReadOnly | Filesystem is not read-only", true},
		{"mended meanwhile", "True", look(), "False | FilesystemIsNotReadOnly | Filesystem is not read-only", false},
		{"broken meanwhile", "False", look("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error", false},
		{"blind at first, still faulty", "True", blindThen("Ext4Error"), "True | Ext4Error | thing 0 is Ext4Error", true},
		{"blind at first, still healthy", "False", blindThen(), "False | FilesystemIsNotReadOnly | Filesystem is not read-only", true},
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
				test.tell(r, w)
				moved := time.Now()
				time.Sleep(10 * time.Minute)
				for _, patch := range node.Patches() {
					if strings.Contains(patch, "Unknown") && strings.Contains(patch, "ReadonlyFilesystem\",\"status\":\"Unknown") {
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

// A check that stays blind after a start without memory is Unknown in the end: the old answer is not the truth for ever.
func TestGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(old("False", "Before", time.Hour)), reporttest.NewWorld()
		c := testConfig(node)
		c.Spread = -1
		r := New(c)
		reporttest.Start(t, r)
		r.Tell(w.Look("disk", errors.New("blind")))
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

// Ten thousand agents are restarted: none of those that have nothing new to tell writes before its refresh.
func TestRestartWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w, store := reporttest.NewNode(), reporttest.NewWorld(), reporttest.NewStore()
		c := testConfig(node)
		c.Store = store
		r := New(c)
		stop := reporttest.Start(t, r)
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		r.Tell(w.Look(reporttest.Check, nil))
		time.Sleep(10 * time.Minute)
		stop()
		before := len(node.Patches())
		r = New(c)
		reporttest.Start(t, r)
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		r.Tell(w.Look(reporttest.Check, nil))
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
		r.Tell(w.Look("disk", nil))
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

func TestOutages(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		wait time.Duration // before the second attempt, with a random source of one half
	}{
		{"401", reporttest.Status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, 0), 500 * time.Millisecond},
		{"403", reporttest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0), 500 * time.Millisecond},
		{"429 with Retry-After", reporttest.Status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 17), 17500 * time.Millisecond},
		{"500", reporttest.Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0), 500 * time.Millisecond},
		{"no connection", errors.New("connect: connection refused"), 500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node, w := reporttest.NewNode(), reporttest.NewWorld()
				r := New(testConfig(node))
				reporttest.Start(t, r)
				node.Fail(test.err)
				r.Tell(w.Look("disk", nil, "Ext4Error"))
				moved := time.Now()
				time.Sleep(3 * time.Hour)
				attempts := node.Attempts()
				if got := attempts[1].Sub(attempts[0]); got != test.wait {
					t.Errorf("second attempt after %s, want %s", got, test.wait)
				}
				if got := attempts[len(attempts)-1].Sub(attempts[len(attempts)-2]); got < 2*time.Minute || got > 5*time.Minute {
					t.Errorf("after hours it is tried each %s", got)
				}
				node.Mend()
				time.Sleep(5 * time.Minute)
				want := "True | Ext4Error | thing 0 is Ext4Error | " + at(moved)
				if diff := cmp.Diff(want, shownLine(node.Shown("ReadonlyFilesystem"))); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A patch whose answer is lost may have been applied. What is believed by then must be written, even if it is what the
// node showed before.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Tell(w.Look("disk", nil))
		r.Tell(w.Look(reporttest.Check, finding.NotApplicable("-")))
		time.Sleep(10 * time.Minute)
		node.LoseAnswers(errors.New("EOF"))
		r.Tell(w.Look("disk", nil, "Ext4Error"))
		r.Tell(w.Look(reporttest.Check, nil, "Other"))
		time.Sleep(200 * time.Millisecond)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionTrue {
			t.Fatalf("the patch was not applied: %s", got)
		}
		r.Tell(w.Look("disk", nil))
		r.Tell(w.Look(reporttest.Check, finding.NotApplicable("-")))
		node.Mend()
		time.Sleep(10 * time.Second)
		if got := node.Shown("ReadonlyFilesystem").Status; got != corev1.ConditionFalse {
			t.Errorf("shown %s, want False", got)
		}
		if got := node.Shown("Suite"); got != nil {
			t.Errorf("shown %s, want none", shownLine(got))
		}
	})
}

// A disk that hangs is what we are to tell of: it must not keep us from it.
func TestHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w, store := reporttest.NewNode(), reporttest.NewWorld(), reporttest.NewStore()
		hung := &hungStore{Store: store, release: make(chan struct{})}
		c := testConfig(node)
		c.Store = hung
		r := New(c)
		stop := reporttest.Start(t, r)
		for _, reasons := range [][]string{{"Ext4Error"}, nil, {"Again"}} {
			r.Tell(w.Look("disk", nil, reasons...))
			time.Sleep(2 * time.Second)
		}
		if got := node.Shown("ReadonlyFilesystem"); got == nil || got.Reason != "Again" {
			t.Errorf("shown %s", shownLine(got))
		}
		close(hung.release)
		stop()
	})
}

type hungStore struct {
	*reporttest.Store
	release chan struct{}
}

func (s *hungStore) Put(key string, value []byte) error {
	<-s.release
	return s.Store.Put(key, value)
}

// Another reason each second is written five times, then once a minute.
func TestReasonChurnIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, w := reporttest.NewNode(), reporttest.NewWorld()
		r := New(testConfig(node))
		reporttest.Start(t, r)
		r.Tell(w.Look("disk", nil, "First"))
		moved := time.Now()
		time.Sleep(time.Second)
		for i := range 600 {
			r.Tell(w.Look("disk", nil, "Reason"+string(rune('A'+i%26))))
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
		c.Conditions = map[string]report.Naming{"one": diskNaming, "two": diskNaming}
		r := New(c)
		reporttest.Start(t, r)
		shown := func() string { return shownLine(node.Shown("ReadonlyFilesystem")) }
		r.Tell(w.Look("one", nil))
		r.Tell(w.Look("two", nil, "Two"))
		began := time.Now()
		time.Sleep(time.Minute)
		r.Tell(w.Look("one", nil, "One"))
		time.Sleep(time.Minute)
		r.Tell(w.Look("two", nil)) // faulty without a break
		time.Sleep(time.Minute)
		if diff := cmp.Diff("True | One | thing 0 is One | "+at(began), shown()); diff != "" {
			t.Error(diff)
		}
		r.Tell(w.Look("one", nil))
		ended := time.Now()
		time.Sleep(time.Minute)
		if diff := cmp.Diff("False | FilesystemIsNotReadOnly | Filesystem is not read-only | "+at(ended), shown()); diff != "" {
			t.Error(diff)
		}
	})
}
