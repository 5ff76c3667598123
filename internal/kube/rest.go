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
	scrape := newResting(c, k.Scrape, k.Process, 0, func(time.Time) bool { return c.changes.quiet() })
	k.RecentPods = newResting(c, k.Pods, k.Process, podsShare, c.changes.unchangedSince).get
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

// identity is one process of kubelet.
type identity struct {
	pid   int
	start uint64
}

// newResting caches an answer of kubelet for as long as it holds: until the next round, unless a pod changes earlier or
// another kubelet runs. A refusal is cached as well; other errors are not. An answer without error holds for the time
// share while the same kubelet runs, and unchanged reports whether one of a time still does.
func newResting[T any](c *Client, ask func(context.Context) (T, error), process func() (host.Process, error),
	share time.Duration, unchanged func(at time.Time) bool) *cached[T] {
	running := func() (identity, error) {
		p, err := process()
		return identity{p.PID, p.StartTime}, err
	}
	var asked identity
	resting := newCached(func(ctx context.Context) (T, error) {
		asked, _ = running()
		return ask(ctx)
	})
	resting.keep = func(context.Context, error) time.Duration { return 0 }
	resting.holds = func(at time.Time, refused error) bool {
		if refused != nil && !errors.Is(refused, hosterr.ErrForbidden) {
			return false // before kubelet is searched for: ask does so as well
		}
		now := time.Now()
		who, err := running()
		switch {
		case err != nil || who != asked:
			return false
		case refused == nil && now.Sub(at) < share:
			return true
		}
		return c.rounds.of(at) == c.rounds.of(now) && (refused != nil || unchanged(at))
	}
	return resting
}
