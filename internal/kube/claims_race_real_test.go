package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// taints: the agent's writes and those of rivals to the one list of taints do not overwrite each other.
func (r *realAPIServer) taints(t *testing.T, admin, a *Client) {
	const rivals = 4
	each := 15
	if *long {
		each = 250
	}
	// write adds 1 to the value of a rival's taint, in the same way as the agent changes a Node.
	write := func(ctx context.Context, c *Client, key string) error {
		for {
			node, err := c.GetNode(ctx)
			if err != nil {
				return err
			}
			n := 0
			taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
				if t.Key == key {
					n, _ = strconv.Atoi(t.Value)
				}
				return t.Key == key
			})
			taints = append(taints, corev1.Taint{Key: key, Value: strconv.Itoa(n + 1), Effect: corev1.TaintEffectNoSchedule})
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
				"spec": map[string]any{"taints": taints}})
			if err != nil {
				return err
			}
			if err = c.PatchNode(ctx, patch, false); !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	ctx := within(t, 5*time.Minute)
	reporter := taint.New(taint.Config{Node: a, Mode: taint.On, Hold: time.Millisecond, Rand: func() float64 { return 0 }})
	stop := reporttest.Start(t, reporter)
	asAdmin := r.client("admin", "node-a")
	var group sync.WaitGroup
	for i := range rivals {
		group.Go(func() {
			for range each {
				if err := write(ctx, asAdmin, fmt.Sprint("rival-", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	world, flips := reporttest.NewWorld(), 0
	for ended := false; !ended; flips++ {
		state, _ := world.Run("disk", nil, []string{"DiskReadonly"}[:(flips+1)%2]...)
		reporter.Update(state, nil)
		select {
		case <-done:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	state, _ := reporttest.NewWorld().Run("disk", nil, "DiskReadonly")
	reporter.Update(state, nil)
	want := map[string]string{taint.DefaultKey: "DiskReadonly", corev1.TaintNodeNotReady: ""} // the apiserver's own
	for i := range rivals {
		want[fmt.Sprint("rival-", i)] = strconv.Itoa(each)
	}
	var diff string
	until(t, "the taints are those of all", func() error { return errors.New(diff) }, func(error) bool {
		node, err := a.GetNode(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, t := range node.Spec.Taints {
			got[t.Key] = t.Value
		}
		diff = cmp.Diff(want, got)
		return diff == ""
	})
	stop()
	t.Logf("%d writes of others against %d changes of mind of the agent", rivals*each, flips)
	if _, err := r.send(admin, "PATCH", "/api/v1/nodes/node-a", `{"spec":{"taints":null}}`); err != nil {
		t.Fatal(err)
	}
}

// unreliable is an apiserver behind a bad network, and with a wrong clock.
type unreliable struct {
	*Client
	skew   time.Duration // of the apiserver that answers this agent
	random func() float64
	faults float64 // share of the requests that fail
	// releases protects requests that release a slot from loss; the answer may still be lost. An agent that loses the
	// request looks like a dead one.
	releases bool
	// turns bounds the lists that all agents make at the same time: on a slow machine they take turns, so that no list
	// takes longer than the client waits.
	turns chan struct{}
}

var errLost = errors.New("connection lost")

// trouble decides whether a request or its answer is lost.
func (u unreliable) trouble() (request, answer error) {
	switch x := u.random(); {
	case x < u.faults/2:
		return errLost, nil
	case x < u.faults:
		return nil, errLost
	}
	return nil, nil
}

func (u unreliable) CreateLease(ctx context.Context, lease *coordinationv1.Lease, dryRun bool) (*coordinationv1.Lease,
	error) {
	request, answer := u.trouble()
	if request != nil {
		return nil, request
	}
	made, err := u.Client.CreateLease(ctx, lease, dryRun)
	return made, errors.Join(err, answer)
}

func (u unreliable) ListLeases(ctx context.Context, namespace, selector string) ([]coordinationv1.Lease, time.Time,
	error) {
	request, answer := u.trouble()
	if request != nil {
		return nil, time.Time{}, request
	}
	select {
	case u.turns <- struct{}{}:
		defer func() { <-u.turns }()
	case <-ctx.Done():
		return nil, time.Time{}, ctx.Err()
	}
	leases, date, err := u.Client.ListLeases(ctx, namespace, selector)
	return leases, date.Add(u.skew), errors.Join(err, answer)
}

func (u unreliable) DeleteLease(ctx context.Context, namespace, name, uid string) error {
	request, answer := u.trouble()
	if request != nil && !u.releases {
		return request
	}
	return errors.Join(u.Client.DeleteLease(ctx, namespace, name, uid), answer)
}

// slots is how many slots can be held at once in the race.
const slots = 5

// racer is one of many agents that want a slot.
type racer struct {
	fleet  *fleet.Fleet
	random *rand.Rand
	dies   bool // with its slot
	atMost time.Duration
}

// race lets many agents compete for 5 slots, over a network that loses one request in ten, with apiservers whose clocks
// are up to a minute apart. Some agents die with their slot: their claims end after a minute and a quarter, and only
// then do others get these slots. The race goes on while any agent still gets a slot.
func (r *realAPIServer) race(t *testing.T, admin *Client) {
	const stalled = 15 * time.Minute
	racers := r.racers()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stall := time.AfterFunc(stalled, func() { cancel(fmt.Errorf("nobody has got a slot for %s", stalled)) })
	defer stall.Stop()
	var (
		mu    sync.Mutex
		held  []interval
		group sync.WaitGroup
	)
	for _, racer := range racers {
		group.Go(func() {
			h, err := racer.run(ctx, func() { stall.Reset(stalled) })
			mu.Lock()
			defer mu.Unlock()
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if err == nil {
				held = append(held, h)
			}
		})
	}
	group.Wait()
	most, deaths := 0, 0
	for _, i := range held { // until its own clock has stopped it, or its release began
		at := 0
		for _, j := range held {
			if j.from <= i.from && i.from < j.to {
				at++
			}
		}
		most = max(most, at)
	}
	for _, racer := range racers {
		if racer.dies {
			deaths++
		}
	}
	if most > slots || len(held) != len(racers) {
		t.Errorf("%d holders at once, want at most %d; %d of %d held one; %v", most, slots, len(held), len(racers),
			context.Cause(ctx))
	}
	t.Logf("%d agents have held a slot, %d died with theirs, at most %d at once", len(held), deaths, most)
	for _, name := range r.claims(admin) {
		_ = admin.DeleteLease(t.Context(), claimsNamespace, name, "")
	}
}

// racers makes the Nodes and the agents. The claim of an agent that dies ends soon, so it reaches the front of the
// queue only when that is short; the others wait for as long as the race goes on.
func (r *realAPIServer) racers() []racer {
	r.t.Helper()
	agents, deaths, poll, patience, soon := 40, 4, 50*time.Millisecond, 2*time.Second, 2*time.Second
	short := time.Second // the shortest action
	if *long {           // each of 500 waiting agents lists them all
		agents, deaths, poll, patience, soon = 500, 10, time.Second, fleet.MaxFor, 13*time.Second
		short = 2 * time.Second // so that there is rarely a time without a holder
	}
	admin := r.client("admin")
	var racers []racer
	turns := make(chan struct{}, 8)
	for i := range agents {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		// A fast clock declares others dead too early; a slow one only waits.
		skew := time.Minute
		if *long && i%2 == 0 {
			skew = time.Duration((2*random.Float64() - 1) * float64(time.Minute))
		}
		dies, waits := i%(agents/deaths) == 0, patience
		if dies {
			waits = soon
		}
		atMost := short + time.Duration(random.Float64()*float64(short))
		c := r.bound(admin, fmt.Sprintf("racer-%d", i), nil)
		u := unreliable{c, skew, random.Float64, 0.1, *long && !dies, turns}
		racers = append(racers, racer{r.patient(c, budget(slots, 1), u, poll, waits), random, dies, atMost})
	}
	return racers
}

// interval is the time during which a slot was held, since boot.
type interval struct{ from, to time.Duration }

// run waits for a slot, holds it for a while, and releases it, unless it dies.
func (r racer) run(ctx context.Context, got func()) (interval, error) {
	now := func() time.Duration { return host.Now().SinceBoot }
	slot, err := r.fleet.Acquire(ctx, "race", r.atMost)
	if err != nil {
		return interval{}, err
	}
	got()
	from := now()
	for end := from + time.Duration(r.random.Float64()*float64(r.atMost)*3/4); now() < end && slot.Valid(); {
		time.Sleep(10 * time.Millisecond)
	}
	for r.dies && slot.Valid() { // it continues until its own clock stops it, without a release
		time.Sleep(10 * time.Millisecond)
	}
	to := now()
	if !r.dies {
		slot.Release(ctx)
	}
	return interval{from, to}, nil
}
