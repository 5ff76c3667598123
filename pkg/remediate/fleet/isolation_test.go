package fleet

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func hold(t *testing.T, f *Fleet, want bool) time.Duration {
	t.Helper()
	held, again, err := f.Hold(t.Context())
	if held != want || err != nil || again <= 0 {
		t.Fatalf("Hold() = %v, %s, %v; want %v", held, again, err, want)
	}
	return again
}

// An isolation is kept for as long as it is renewed, through restarts, a pause and the claims of others that compete.
func TestIsolationIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		a, b := w.node("a"), w.node("b")
		again := hold(t, a, true)
		for i := range 10 {
			if wait := hold(t, b, false); wait < 30*time.Second {
				t.Errorf("asks again after %s", wait)
			}
			time.Sleep(again)
			if i == 5 {
				a = w.node("a")
				w.set(func(w *world) { w.paused = errPaused })
			}
			again = hold(t, a, true)
			if i == 5 {
				if _, _, err := b.Hold(t.Context()); !errors.Is(err, ErrPaused) {
					t.Errorf("Hold() of another = %v, want ErrPaused", err)
				}
				w.set(func(w *world) { w.paused = nil })
			}
			if names := w.names(); len(names) != 1 {
				t.Errorf("claims %v", names)
			}
		}
		if why := b.Status().IsolationSpent; !strings.Contains(why, "1 nodes of pool \"red\"") ||
			!strings.HasSuffix(why, ": a") {
			t.Errorf("the status says %q", why)
		}
		if err := a.Release(t.Context()); err != nil || len(w.names()) != 0 {
			t.Errorf("Release(): %v, %v", err, w.names())
		}
		hold(t, b, true)
		time.Sleep(MaxFor + Skew) // its agent has died: its place is free
		hold(t, a, true)
	})
}

// An agent that dies leaves its taint, and its place is taken while the taint stands, or while this is unknown. A claim
// of another kind ends with its time. When the agent comes back, it has kept its place.
func TestPlaceOfADeadAgent(t *testing.T) {
	for name, test := range map[string]struct {
		taint  map[string]error
		others bool // another node has room
		back   bool // the node itself still has its place
	}{
		"the taint stands":    {map[string]error{"a": nil}, false, true},
		"nobody can say":      {map[string]error{"a": errors.New("no answer")}, false, true},
		"the taint is gone":   {map[string]error{}, true, false},
		"another node's does": {map[string]error{"c": nil}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				hold := func(node string) bool {
					held, _, err := w.node(node).Hold(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					return held
				}
				if !hold("a") {
					t.Fatal("there is room for the first")
				}
				w.set(func(w *world) { w.taints = test.taint })
				for range 4 { // its agent is silent for two hours
					time.Sleep(30*time.Minute + Skew)
					if got := hold("b"); got != test.others {
						t.Errorf("another node is isolated: %t", got)
					}
				}
				if got := hold("a"); got != test.back {
					t.Errorf("its agent is back, and isolates: %t", got)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{taints: map[string]error{"a": nil, "b": nil, "c": nil}}
		three := func(s *Settings) { s.Isolated = 3 }
		for _, name := range []string{"a", "b", "c"} {
			if held, _, err := w.node(name, three).Hold(t.Context()); !held || err != nil {
				t.Fatal(name, held, err)
			}
		}
		time.Sleep(time.Hour)
		if held, _, err := w.node("d", three).Hold(t.Context()); held || err != nil {
			t.Errorf("a fourth of three: %t, %v", held, err)
		}
		w.set(func(w *world) { delete(w.taints, "b") })
		if held, _, err := w.node("d", three).Hold(t.Context()); !held || err != nil {
			t.Errorf("one was taken off: %t, %v", held, err)
		}
		if held, _, err := w.node("a", three).Hold(t.Context()); !held || err != nil { // the agent is back
			t.Errorf("one that has kept its place: %t, %v", held, err)
		}
	})
}

// More agents have died than one look asks for: their nodes are no longer isolated, and a few looks find that out. Until
// then the places count as taken.
func TestManyDeadClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 2*maxAsked + 5
		w := &world{}
		many := func(s *Settings) { s.Isolated = dead }
		for i := range dead {
			if held, _, err := w.node(fmt.Sprintf("dead-%d", i), many).Hold(t.Context()); !held || err != nil {
				t.Fatal(i, held, err)
			}
		}
		time.Sleep(time.Hour)
		f := w.node("sick")
		for _, want := range []bool{false, false, true} {
			if held, _, err := f.Hold(t.Context()); held != want || err != nil {
				t.Errorf("Hold() = %t, %v, want %t", held, err, want)
			}
		}
	})
}

func TestIsolatedShare(t *testing.T) {
	for total, want := range map[int]int{3: 1, 10: 1, 25: 2, 10_000: 1000} {
		w := &world{total: total}
		f := w.node("a", func(s *Settings) { s.Pool, s.Isolated = "", 0 })
		if got, err := f.isolatedLimit(t.Context()); got != want || err != nil {
			t.Errorf("of %d Nodes: %d, %v; want %d", total, got, err, want)
		}
	}
}
