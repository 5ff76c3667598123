package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	isolationFor = MaxFor
	// renewAt is how old the claim of an isolation gets before another one is made.
	renewAt = isolationFor / 2
	// retryFirst and retryMost limit how long a node waits if the budget has no room for it.
	retryFirst = time.Minute
	retryMost  = 15 * time.Minute
	// isolatedShare is the part of a cluster's Nodes that may be isolated unless a number is set.
	isolatedShare = 10 // one in so many
)

// isolation is a node's memory of its isolation. Its holding is read from its claims each time: the taint outlives the
// agent.
type isolation struct {
	retry time.Duration // how long to wait next time the budget is spent
}

// Hold keeps this node within the budget of isolated nodes: held is whether it may have a taint that keeps pods away.
// Call it again after the returned time. A node without a claim needs one like a disruptive action; a pause does not
// affect a node with one. It does not wait for others: a node for which there is no room withdraws its claim.
func (f *Fleet) Hold(ctx context.Context) (held bool, again time.Duration, err error) {
	if err := f.identify(ctx); err != nil {
		return false, 0, err
	}
	limit, err := f.isolatedLimit(ctx)
	if err != nil {
		return false, 0, err
	}
	claims, date, err := f.list(ctx, Isolate)
	if err != nil {
		return false, 0, err
	}
	old, standing := f.best(claims, limit, date)
	if left := old.Created.Add(old.For).Sub(date); standing.Holds && left > isolationFor-renewAt {
		return true, f.held(left - (isolationFor - renewAt)), nil
	}
	if !standing.Holds {
		if err := f.paused(ctx); err != nil {
			return false, 0, err
		}
		if len(standing.Holders) >= limit {
			return false, f.spent(standing, limit), nil
		}
	}
	renewed, standing, err := f.renew(ctx, old, limit, standing.Holds)
	switch {
	case err != nil:
		return false, 0, err
	case renewed:
		return true, f.held(renewAt), nil
	case standing.Holds: // by the old claim, for a while
		return true, f.held(retryFirst), nil
	}
	return false, f.spent(standing, limit), nil
}

// maxAsked bounds how many Nodes are asked for in one look at the claims.
const maxAsked = 20

// stand finds the claims whose time is over while their nodes are still isolated: their places are taken while the
// taints stand; otherwise a fault that kills its nodes would isolate one more every half hour. An unknown place counts
// as taken. A place that is free stays free: to be isolated again, its node needs another claim. So each look asks for
// other Nodes, and many dead claims do not close the budget for ever.
func (f *Fleet) stand(ctx context.Context, claims []Claim, date time.Time) {
	known, sure, self, freed := map[string]bool{}, map[string]bool{}, f.self(), map[string]bool{}
	defer func() { f.setFreed(freed) }()
	for i := range claims {
		c := &claims[i]
		if !c.over(date) {
			continue
		}
		if f.wasFreed(c.UID) {
			freed[c.UID] = true
			continue
		}
		stands, ok := known[c.Node]
		if !ok {
			isolated, err := false, errors.New("too many to ask")
			if len(known) < maxAsked {
				isolated, err = f.config.Cluster.Isolated(ctx, c.Node)
			}
			stands = isolated || err != nil && c.Node != self
			known[c.Node], sure[c.Node] = stands, err == nil
		}
		c.Stands, freed[c.UID] = stands, !stands && sure[c.Node]
	}
}

// wasFreed reports whether the node of a claim was not isolated after the claim's time.
func (f *Fleet) wasFreed(claim string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freed[claim]
}

func (f *Fleet) setFreed(claims map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freed = claims
}

// best returns the claim of this node with the best standing, and the standing.
func (f *Fleet) best(claims []Claim, limit int, date time.Time) (Claim, Standing) {
	var best Claim
	node := f.self()
	for _, c := range claims {
		mine := c.Node == node && slices.Contains(Isolate.names(node), c.Name)
		if mine && !c.dead(date) && c.Created.After(best.Created) && Evaluate(claims, c, limit, date).Holds {
			best = c
		}
	}
	return best, Evaluate(claims, best, limit, date)
}

// renew makes another claim and, once that holds, deletes the old one. holds is whether the old one does.
func (f *Fleet) renew(ctx context.Context, old Claim, limit int, holds bool) (bool, Standing, error) {
	names := Isolate.names(f.self())
	name := names[0]
	if old.Name == name {
		name = names[1]
	}
	claim, err := f.create(ctx, Isolate, name, "taint", isolationFor)
	if err != nil {
		return false, Standing{}, err
	}
	claims, date, err := f.list(ctx, Isolate)
	if err != nil {
		return false, Standing{}, err // the claim ends by itself, or is replaced by the next attempt
	}
	standing := Evaluate(claims, claim, limit, date)
	if standing.Holds {
		if holds {
			err = f.remove(ctx, old.Name, old.UID)
		}
		if err != nil {
			f.config.Log.Info("delete the renewed claim failed: it ends by itself", "err", err)
		}
		return true, standing, nil
	}
	if err := f.remove(ctx, name, claim.UID); err != nil {
		return false, standing, err
	}
	return false, Evaluate(claims, old, limit, date), nil
}

// Release gives up the isolation, after the taint is gone.
func (f *Fleet) Release(ctx context.Context) error {
	if err := f.identify(ctx); err != nil {
		return err
	}
	f.held(0)
	var problems []error
	for _, name := range Isolate.names(f.self()) {
		problems = append(problems, f.remove(ctx, name, ""))
	}
	return errors.Join(problems...)
}

// held notes that the budget is not spent for this node, and returns again.
func (f *Fleet) held(again time.Duration) time.Duration {
	f.setStatus(func(s *Status) { s.IsolationSpent = "" })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isolated.retry = 0
	return again
}

// spent notes that the budget has no room, and returns when to ask again.
func (f *Fleet) spent(standing Standing, limit int) time.Duration {
	f.setStatus(func(s *Status) {
		s.IsolationSpent = fmt.Sprintf("%d nodes of pool %q are isolated, as many as may be: %s", limit, s.Pool,
			finding.JoinFirst(standing.Holders, 5))
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isolated.retry = min(max(2*f.isolated.retry, retryFirst), retryMost)
	return time.Duration((0.5 + f.config.Rand()) * float64(f.isolated.retry))
}

// isolatedLimit returns how many nodes of the pool may be isolated: a number, or a tenth of the cluster's Nodes, at
// least one.
func (f *Fleet) isolatedLimit(ctx context.Context) (int, error) {
	if f.config.Isolated > 0 {
		return f.config.Isolated, nil
	}
	if f.config.Pool != "" {
		return 0, errors.New("fleet.isolated is not set, and the agent does not count the nodes of a pool")
	}
	now := f.config.Now()
	f.mu.Lock()
	total, fresh := f.total, f.totalAt > 0 && now-f.totalAt < identityAge
	f.mu.Unlock()
	if !fresh {
		var err error
		if total, err = f.config.Cluster.Nodes(ctx); err != nil {
			return 0, f.refusal(fmt.Errorf("count the Nodes: %w", err))
		}
		f.mu.Lock()
		f.total, f.totalAt = total, now
		f.mu.Unlock()
	}
	return max(total/isolatedShare, 1), nil
}
