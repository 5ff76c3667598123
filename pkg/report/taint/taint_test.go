package taint

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

var foreign = corev1.Taint{Key: "team", Value: "red", Effect: corev1.TaintEffectNoExecute}

// run tests a reporter on a node with a foreign taint.
func run(t *testing.T, change func(*Config), test func(t *testing.T, r *Reporter, n *fakeTaints,
	w *reporttest.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		node := newFakeTaints(foreign)
		c := Config{Node: node, Mode: On, Store: reporttest.NewStore(), Rand: func() float64 { return 0.5 }}
		if change != nil {
			change(&c)
		}
		r := New(c)
		reporttest.Start(t, r)
		test(t, r, node, reporttest.NewWorld())
	})
}

// shows waits, and fails the test unless the node has these taints besides the foreign one.
func shows(t *testing.T, n *fakeTaints, wait time.Duration, want ...string) {
	t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	got, _ := n.Shown()
	if diff := cmp.Diff(append([]string{"team=red:NoExecute"}, want...), got); diff != "" {
		t.Error(diff)
	}
}

const readonly = DefaultKey + "=DiskReadonly:NoSchedule"

func TestTaintLastsAsLongAsTheFault(t *testing.T) {
	run(t, nil, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		r.Update(w.Run("disk", nil))
		shows(t, n, time.Hour)
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Millisecond, readonly)
		r.Update(w.Run("disk", nil, "DiskReadonly", "Another"))
		shows(t, n, time.Hour, readonly)
		r.Update(w.Run("disk", nil))
		shows(t, n, DefaultHold-time.Second, readonly)
		r.Update(reporttest.NewWorld().Run("disk", nil, "DiskReadonly")) // again within the hold time
		r.Update(reporttest.NewWorld().Run("disk", nil))
		shows(t, n, DefaultHold-time.Second, readonly)
		shows(t, n, 2*time.Second)
		if _, patches := n.Shown(); patches != 2 {
			t.Errorf("%d writes, want 2", patches)
		}
	})
}

// Unknown is not healthy.
func TestTaintStaysWhileNothingIsKnown(t *testing.T) {
	run(t, nil, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Second, readonly)
		state, _ := w.Run("disk", errors.New("hangs"))
		state["disk"].Status = finding.StatusUnknown
		r.Update(state, nil)
		shows(t, n, time.Hour, readonly)
		state, _ = w.Run("other", errors.New("blind"))
		state["disk"].Status, state["other"].Status = finding.StatusHealthy, finding.StatusUnknown
		r.Update(state, nil)
		shows(t, n, DefaultHold+time.Second) // another unknown check does not keep it
	})
}

// An identity that can never taint is reported at the start, before any fault asks for it; and what keeps the taint from
// being what is believed, the kill switch say, is reported while it does.
func TestTaintInTheWay(t *testing.T) {
	run(t, nil, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		n.Refuse()
		r.Update(w.Run("disk", nil))
		time.Sleep(time.Second)
		if why := r.Trouble(); !strings.Contains(why, "can never taint") || !strings.Contains(why, "not allowed to modify") {
			t.Errorf("%q", why)
		}
	})
	var stopped atomic.Bool
	const exists = "the kill switch exists"
	run(t, func(c *Config) {
		c.Stopped = func() string {
			if stopped.Load() {
				return exists
			}
			return ""
		}
	},
		func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
			r.Update(w.Run("disk", nil))
			time.Sleep(time.Second)
			if why := r.Trouble(); why != "" {
				t.Errorf("%q, and nothing is in the way", why)
			}
			if _, patches := n.Shown(); patches != 0 {
				t.Errorf("the trial was written: %d", patches)
			}
			stopped.Store(true)
			r.Update(w.Run("disk", nil, "DiskReadonly"))
			time.Sleep(time.Second)
			if why := r.Trouble(); !strings.Contains(why, "left as it is: "+exists) {
				t.Errorf("%q", why)
			}
			stopped.Store(false)
			shows(t, n, 2*askOwner, readonly)
			if why := r.Trouble(); why != "" {
				t.Errorf("%q, and the node is tainted", why)
			}
		})
}

func TestTaintIsTheReportersOwn(t *testing.T) {
	drained := func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: "NoSchedule"})
	}
	for name, test := range map[string]struct {
		change func(*Config)
		node   func(*fakeTaints)
		want   []string
	}{
		"set":                      {want: []string{readonly}},
		"off":                      {change: func(c *Config) { c.Mode = Off }},
		"an unknown mode":          {change: func(c *Config) { c.Mode = "yes" }},
		"dry-run":                  {change: func(c *Config) { c.Mode = DryRun }},
		"kill switch":              {change: func(c *Config) { c.Stopped = func() string { return "stop file" } }},
		"others write meanwhile":   {node: func(n *fakeTaints) { n.Rival(3) }, want: []string{readonly}},
		"without admission policy": {node: func(n *fakeTaints) { n.Unconfined = true }},
		"Karpenter drains it": {node: func(n *fakeTaints) { n.Change(drained) },
			want: []string{"karpenter.sh/disrupted:NoSchedule"}},
		"a check that only degrades": {change: func(c *Config) { c.Prefer = []string{"disk"} },
			want: []string{DefaultKey + "=DiskReadonly:PreferNoSchedule"}},
		"paused": {node: func(n *fakeTaints) {
			n.Change(func(n *corev1.Node) { n.Annotations = map[string]string{"nodeagent.github.io/pause": ""} })
		}},
		"kured has its lock": {change: func(c *Config) {
			c.Elsewhere = func(context.Context) (string, error) { return "kured has its lock", nil }
		}},
		"whether kured has its lock is not known": {change: func(c *Config) {
			c.Elsewhere = func(context.Context) (string, error) { return "", errors.New("no answer") }
		}},
		"kured has it for another": {change: func(c *Config) {
			c.Elsewhere = func(context.Context) (string, error) { return "", nil }
		}, want: []string{readonly}},
		"the Node is being deleted": {node: func(n *fakeTaints) {
			n.Change(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, test.change, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
				if test.node != nil {
					test.node(n)
				}
				r.Update(w.Run("disk", nil, "DiskReadonly"))
				time.Sleep(time.Second)
				got, _ := n.Shown()
				got = slices.DeleteFunc(got, func(text string) bool { return strings.HasPrefix(text, "rival") })
				if diff := cmp.Diff(append([]string{"team=red:NoExecute"}, test.want...), got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A restarted agent removes the taint of an earlier one, whatever the mode is now; but not before it knows the state.
func TestTaintOfAnEarlierAgent(t *testing.T) {
	for _, mode := range []Mode{On, Off} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, node, w := reporttest.NewStore(), newFakeTaints(foreign), reporttest.NewWorld()
				first := New(Config{Node: node, Mode: On, Store: store})
				stop := reporttest.Start(t, first)
				first.Update(w.Run("disk", nil, "DiskReadonly"))
				shows(t, node, time.Second, readonly)
				stop()
				if !Owed(store) {
					t.Fatal("the taint is not remembered")
				}
				second := New(Config{Node: node, Mode: mode, Store: store})
				reporttest.Start(t, second)
				if mode == On {
					shows(t, node, time.Hour, readonly) // no state yet
					second.Update(w.Run("disk", nil))
				}
				shows(t, node, DefaultHold+time.Second)
				if Owed(store) {
					t.Error("the taint is still remembered")
				}
			})
		})
	}
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		node := newFakeTaints()
		return reporttest.Subject{
			Reporter: New(Config{Node: node, Mode: On, Hold: time.Millisecond}), Sink: &node.Fault,
			Reports: func() []string {
				taints, _ := node.Shown()
				for i, text := range taints {
					text, _, _ = strings.Cut(text, ":")
					taints[i] = strings.TrimPrefix(text, DefaultKey+"=")
				}
				return taints
			},
		}
	})
}

func TestLabelValue(t *testing.T) {
	for reason, want := range map[string]string{
		"DiskReadonly": "DiskReadonly", "": "", "a b/ü": "a-b", "-x-": "x",
		strings.Repeat("a", 62) + "..": strings.Repeat("a", 62),
	} {
		if got := labelValue(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}
