package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/internal/setting"
)

// world is a namespace of claims, with the apiserver's other answers.
type world struct {
	mu      sync.Mutex // guards all below
	leases  []coordinationv1.Lease
	version int
	paused  error // errPaused: it is
	down    bool
	total   int
	ahead   time.Duration    // of the apiserver's clock
	taints  map[string]error // of nodes: nil for one that is isolated
}

var errPaused = errors.New("paused")

func (w *world) CreateLease(_ context.Context, lease *coordinationv1.Lease, dryRun bool) (*coordinationv1.Lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.down:
		return nil, errors.New("no apiserver")
	case dryRun:
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden,
			Reason: metav1.StatusReasonForbidden, Message: "ValidatingAdmissionPolicy"}}
	case slices.ContainsFunc(w.leases, func(l coordinationv1.Lease) bool { return l.Name == lease.Name }):
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
	}
	w.version++
	made := lease.DeepCopy()
	made.UID, made.ResourceVersion = types.UID(fmt.Sprint("uid-", w.version)), fmt.Sprint(w.version)
	made.CreationTimestamp = metav1.NewTime(time.Now().Add(w.ahead).Truncate(time.Second))
	w.leases = append(w.leases, *made)
	return made, nil
}

func (w *world) ListLeases(_ context.Context, namespace, selector string) ([]coordinationv1.Lease, time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted, err := labels.Parse(selector)
	if w.down {
		err = errors.New("no apiserver")
	}
	var found []coordinationv1.Lease
	for _, l := range w.leases {
		if l.Namespace == namespace && err == nil && wanted.Matches(labels.Set(l.Labels)) {
			found = append(found, l)
		}
	}
	return found, time.Now().Add(w.ahead), err
}

func (w *world) DeleteLease(_ context.Context, _, name, uid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return errors.New("no apiserver")
	}
	before := len(w.leases)
	w.leases = slices.DeleteFunc(w.leases, func(l coordinationv1.Lease) bool {
		return l.Name == name && (uid == "" || string(l.UID) == uid)
	})
	if len(w.leases) == before {
		return apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	return nil
}

func (w *world) set(change func(*world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, l := range w.leases {
		names = append(names, l.Name)
	}
	return names
}

// node returns the claims of a node in pool red.
func (w *world) node(name string, change ...func(*Settings)) *Fleet {
	settings := Defaults()
	settings.Namespace, settings.Pool, settings.Isolated = "claims", "pool", 1
	for _, c := range change {
		c(&settings)
	}
	start := time.Now().Add(-time.Hour)
	return New(Config{Settings: settings, Rand: func() float64 { return 0.5 },
		Now: func() time.Duration { return time.Since(start) },
		Cluster: Cluster{
			Leases: w,
			Node: func(context.Context) (*corev1.Node, error) {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name),
					Labels: map[string]string{"pool": "red"}}}, nil
			},
			Isolated: func(_ context.Context, node string) (bool, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				err, ok := w.taints[node]
				return ok && err == nil, err
			},
			Nodes: func(context.Context) (int, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.total, nil },
			Paused: func(context.Context, string, string) (bool, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if errors.Is(w.paused, errPaused) {
					return true, nil
				}
				return false, w.paused
			},
		}})
}

// acquire asks for a slot for as long as limit.
func acquire(t *testing.T, f *Fleet, limit time.Duration) (Held, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return f.Acquire(ctx, "restart kubelet", time.Minute)
}

func must(t *testing.T, f *Fleet, limit time.Duration) Held {
	t.Helper()
	held, err := acquire(t, f, limit)
	if err != nil || !held.Valid() {
		t.Fatalf("Acquire() = %v", err)
	}
	return held
}

func refused(t *testing.T, f *Fleet, want error) {
	t.Helper()
	if _, err := acquire(t, f, time.Minute); !errors.Is(err, want) {
		t.Errorf("Acquire() = %v, want %v", err, want)
	}
}

func TestSlotGoesFromOneToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		a, b := w.node("a"), w.node("b")
		held := must(t, a, time.Second)
		refused(t, a, ErrHeld)
		refused(t, b, ErrWaiting)
		if names := w.names(); !slices.Equal(names, []string{"slot.a"}) {
			t.Errorf("a claim that was given up is still there: %v", names)
		}
		waits := make(chan Held)
		go func() { waits <- must(t, b, time.Hour) }()
		time.Sleep(time.Minute)
		if s := b.Status().Waiting; !strings.Contains(s, "restart kubelet") || !strings.Contains(s, "[a]") {
			t.Errorf("the status of who waits is %q", s)
		}
		held.Release(t.Context())
		if held.Valid() {
			t.Error("a slot is valid after it was released")
		}
		(<-waits).Release(t.Context())
		if names := w.names(); len(names) != 0 {
			t.Errorf("claims are left: %v", names)
		}
	})
}

// A holder stops by its own clock while the apiserver is away; the others take its slot a minute later, by the
// apiserver's.
func TestDeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		held := must(t, w.node("a"), time.Second)
		begun := time.Now()
		for held.Valid() {
			time.Sleep(time.Second)
		}
		lasted := time.Since(begun)
		next := must(t, w.node("b"), time.Hour)
		if waited := time.Since(begun); waited < lasted+Skew || waited > lasted+Skew+3*time.Minute {
			t.Errorf("the slot lasted %s and was taken after %s", lasted, waited)
		}
		next.Release(t.Context())
	})
}

func TestNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		a := w.node("a")
		w.set(func(w *world) { w.paused = errPaused })
		refused(t, a, ErrPaused)
		w.set(func(w *world) { w.paused = errors.New("no answer") })
		if _, err := acquire(t, a, time.Minute); err == nil || errors.Is(err, ErrPaused) {
			t.Errorf("whether it is paused is not known: %v", err)
		}
		w.set(func(w *world) { w.paused, w.down = nil, true })
		if _, err := acquire(t, a, time.Minute); err == nil {
			t.Error("a slot without the apiserver")
		}
		if _, err := acquire(t, w.node("c", func(s *Settings) { s.Pool = "zone" }), time.Minute); err == nil {
			t.Error("a slot for a node whose pool is not known")
		}
		w.set(func(w *world) { w.down = false })
		if _, err := a.Acquire(t.Context(), "long", MaxFor); err == nil {
			t.Error("a slot for longer than a claim can last")
		}
		must(t, a, time.Minute).Release(t.Context())
	})
}

// If too many nodes wait, none gets a slot, and the queue stops growing; when they have gone, it goes on.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		few := func(s *Settings) { s.Storm = 3 }
		held := must(t, w.node("first", few), time.Minute)
		var group sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 12 {
			group.Go(func() {
				if _, err := w.node(fmt.Sprint("n", i), few).Acquire(ctx, "x", time.Minute); !errors.Is(err, ErrStorm) &&
					!errors.Is(err, ErrWaiting) {
					t.Error(err)
				}
			})
		}
		time.Sleep(2 * time.Minute)
		if names := w.names(); len(names) < 4 || len(names) > 5 {
			t.Errorf("claims of a storm of 3: %v", names)
		}
		held.Release(t.Context())
		refused(t, w.node("late", few), ErrStorm)
		cancel()
		group.Wait()
		must(t, w.node("late", few), time.Minute).Release(t.Context())
	})
}

// A restarted agent does not use a claim that it finds under its name: its age is unknown.
func TestClaimOfAnEarlierAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		must(t, w.node("a"), time.Second)
		again := must(t, w.node("a"), time.Minute)
		if names := w.names(); !slices.Equal(names, []string{"slot.a"}) || w.version != 2 {
			t.Errorf("claims %v, the last one is number %d", names, w.version)
		}
		again.Release(t.Context())
	})
}

func TestSettings(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	wrong, _ := errors.AsType[setting.Mistakes](Settings{Namespace: "a b", Pool: "a/b/c", Slots: 0, Storm: 0}.Validate())
	for _, key := range []string{"namespace", "pool", "slots", "storm", "isolated"} {
		if wrong[key] == "" {
			t.Errorf("%s: no problem", key)
		}
	}
}

// A jump of the apiserver's clock ends no claim of another node for an agent that has seen the clock before; once all
// of them have ended by themselves, the new time counts.
func TestJumpOfTheApiserversClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		a, b := w.node("a"), w.node("b")
		if _, err := a.Acquire(t.Context(), "restart", time.Minute); err != nil {
			t.Fatal(err)
		}
		wait := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := b.Acquire(ctx, "restart", time.Minute)
			return err
		}
		if err := wait(); !errors.Is(err, ErrWaiting) {
			t.Fatal(err)
		}
		w.set(func(w *world) { w.ahead = 3 * time.Hour })
		if err := wait(); !errors.Is(err, ErrWaiting) {
			t.Errorf("%v: the slot of a node that holds it was given to another", err)
		}
		time.Sleep(MaxFor + 2*Skew)
		if err := wait(); err != nil {
			t.Errorf("%v: the claim of a has ended long ago", err)
		}
	})
}
