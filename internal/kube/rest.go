package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// roundEvery is how often the agent asks kubelet's API on a node at rest. All its requests come in the same minute of
// each round: kubelet asks the apiserver who the agent is (TokenReview, cached for 2 minutes) and whether it may
// (SubjectAccessReview for each resource, cached for 5 minutes), so one round costs three requests.
const roundEvery = 40 * time.Minute

// podsShare is the age up to which one list from kubelet serves all checks while pods change.
const podsShare = 20 * time.Second

// rounds numbers the rounds of one agent. They begin at a different moment on each node.
type rounds struct{ start time.Time }

func newRounds() rounds { return rounds{time.Now().Add(-rand.N(roundEvery))} } //nolint:gosec // no secret

func (r rounds) of(at time.Time) int64 { return int64(at.Sub(r.start) / roundEvery) }

// AtRest adds to kubelet's API the calls that query it only once a round while no pod of the node changes.
func (c *Client) AtRest(k host.Kubelet) host.Kubelet {
	pods := newResting(c, k.Pods, k.Process)
	pods.share, pods.holds = podsShare, c.changes.unchangedSince
	scrape := newResting(c, k.Scrape, k.Process)
	scrape.holds = func(time.Time) bool { return c.changes.quiet() }
	k.RecentPods = pods.get
	k.RecentScrape = scrape.get
	k.Scrape = scrape.renew
	return k
}

// still reports whether, for the given time, no pod of the node has changed and no new round has begun.
func (c *Client) still(ago time.Duration) bool {
	now := time.Now()
	at := now.Add(-ago)
	return c.changes.unchangedSince(at) && c.rounds.of(at) == c.rounds.of(now)
}

// resting caches an answer of kubelet for as long as it holds: until the next round, unless a pod changes earlier or
// another kubelet runs. A refusal is cached as well; other errors are not. Concurrent callers wait for a running
// request, but not beyond their ctx.
type resting[T any] struct {
	ask     func(ctx context.Context) (T, error)
	process func() (host.Process, error)
	rounds  *rounds
	share   time.Duration           // an answer always holds for so long
	holds   func(at time.Time) bool // whether an answer of that time still holds

	token chan struct{} // of size 1: guards the fields below and the right to ask
	value T
	err   error
	at    time.Time // zero: there is no answer
	who   identity
}

// identity is one process of kubelet.
type identity struct {
	pid   int
	start uint64
}

func newResting[T any](c *Client, ask func(context.Context) (T, error),
	process func() (host.Process, error)) *resting[T] {
	return &resting[T]{ask: ask, process: process, rounds: &c.rounds, token: make(chan struct{}, 1)}
}

func (r *resting[T]) get(ctx context.Context) (T, error) { return r.answer(ctx, false) }

// renew always asks, and caches the answer.
func (r *resting[T]) renew(ctx context.Context) (T, error) { return r.answer(ctx, true) }

func (r *resting[T]) answer(ctx context.Context, anew bool) (T, error) {
	select {
	case r.token <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	defer func() { <-r.token }()
	now := time.Now()
	process, err := r.process()
	who := identity{process.PID, process.StartTime}
	if !anew && err == nil && who == r.who && r.valid(now) {
		return r.value, r.err
	}
	r.value, r.err = r.ask(ctx)
	r.at, r.who = now, who
	if r.err != nil && !errors.Is(r.err, hosterr.ErrForbidden) {
		r.at = time.Time{}
	}
	return r.value, r.err
}

func (r *resting[T]) valid(now time.Time) bool {
	switch {
	case r.at.IsZero():
		return false
	case r.err == nil && now.Sub(r.at) < r.share:
		return true
	}
	return r.rounds.of(r.at) == r.rounds.of(now) && (r.err != nil || r.holds(r.at))
}
