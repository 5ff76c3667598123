package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Slots is the interface that a disruptive action needs.
type Slots interface {
	// Acquire waits for a slot until ctx ends, and then returns the reason for the wait. The action takes at most
	// atMost; it must not begin a step after the slot has become invalid.
	Acquire(ctx context.Context, action string, atMost time.Duration) (Held, error)
}

// Held is one slot.
type Held interface {
	// Valid reports whether the slot is still this node's, by the clock of this machine alone.
	Valid() bool
	// Release passes it on. If the apiserver cannot be reached, the slot ends with its claim.
	Release(ctx context.Context)
}

// slot is the slot that this node holds or waits for.
type slot struct {
	fleet    *Fleet
	action   string
	claim    Claim
	deadline time.Duration // since boot
	released bool          // guarded by fleet.mu
}

// Acquire implements Slots. At most one slot is held or waited for at a time: a second one is refused with ErrHeld.
func (f *Fleet) Acquire(ctx context.Context, action string, atMost time.Duration) (Held, error) {
	if most := MaxFor - margin; atMost <= 0 || atMost > most {
		return nil, fmt.Errorf("slot for %s: %s are not possible, at most %s are", action, atMost, most)
	}
	s := &slot{fleet: f, action: action}
	if err := f.reserve(s); err != nil {
		return nil, fmt.Errorf("slot for %s: %w", action, err)
	}
	why := error(nil)
	for n := 0; ; n++ {
		held, err := s.attempt(ctx, atMost)
		if held {
			f.setStatus(func(st *Status) { st.Slot, st.Waiting = action, "" })
			return s, nil
		}
		if why == nil || ctx.Err() == nil {
			why = err // not the end of the caller's context
		}
		f.setStatus(func(st *Status) { st.Waiting = action + ": " + why.Error() })
		if errors.Is(err, ErrIdentity) || errors.Is(err, ErrUnconfined) || !f.wait(ctx, n) {
			break
		}
	}
	s.withdraw(ctx)
	f.setStatus(func(st *Status) { st.Waiting = "" })
	return nil, fmt.Errorf("slot for %s: %w", action, why)
}

// reserve makes s the one slot of this node.
func (f *Fleet) reserve(s *slot) error {
	now := f.config.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if other := f.slot; other != nil && !other.released && (other.deadline == 0 || now < other.deadline) {
		return fmt.Errorf("%w, or waits for one, for %s", ErrHeld, other.action)
	}
	f.slot = s
	return nil
}

// wait waits before the next attempt, longer each time, and reports whether to make one.
func (f *Fleet) wait(ctx context.Context, attempts int) bool {
	poll := f.config.Poll << min(attempts, 3)
	timer := time.NewTimer(time.Duration((0.5 + f.config.Rand()) * float64(poll)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// attempt makes a claim if there is none with enough time left, and reports whether it holds a slot; if not, why.
func (s *slot) attempt(ctx context.Context, atMost time.Duration) (bool, error) {
	f := s.fleet
	if err := f.identify(ctx); err != nil {
		return false, err
	}
	if err := f.paused(ctx); err != nil {
		return false, err
	}
	if s.claim.UID == "" {
		// Do not lengthen the queue beyond the length that shows a storm.
		if standing, err := s.standing(ctx); err != nil || standing.storm(f.config.Storm) {
			return false, cmp.Or(err, f.storm(standing))
		}
	}
	if s.claim.UID == "" || s.left() < atMost {
		if err := s.make(ctx, atMost); err != nil {
			return false, err
		}
	}
	standing, err := s.standing(ctx)
	if err != nil {
		return false, err
	}
	switch {
	case !standing.Listed:
		s.claim = Claim{} // it was deleted
		return false, errors.New("its claim is gone")
	case standing.storm(f.config.Storm):
		if standing.Before >= f.config.Slots+f.config.Storm {
			err = f.remove(ctx, s.claim.Name, s.claim.UID) // enough others show it
			s.claim = Claim{}
		}
		return false, cmp.Or(err, f.storm(standing))
	case !standing.Holds:
		return false, fmt.Errorf("%w: %d of pool %q by %v, %d nodes are before this one", ErrWaiting, f.config.Slots,
			f.Status().Pool, standing.Holders, standing.Before)
	case s.left() < atMost:
		return false, errors.New("the apiserver took so long that too little of the claim is left")
	}
	return true, nil
}

// standing returns the standing of the claim now.
func (s *slot) standing(ctx context.Context) (Standing, error) {
	claims, date, err := s.fleet.list(ctx, Slot)
	if err != nil {
		return Standing{}, err
	}
	return Evaluate(claims, s.claim, s.fleet.config.Slots, date), nil
}

func (f *Fleet) storm(s Standing) error {
	return fmt.Errorf("%w: %d of pool %q", ErrStorm, s.Waiting, f.Status().Pool)
}

// make makes a new claim, at the end of the queue.
func (s *slot) make(ctx context.Context, atMost time.Duration) error {
	f := s.fleet
	s.claim = Claim{}
	duration := min(atMost+margin+f.config.Patience+time.Second, MaxFor).Truncate(time.Second)
	sent := f.config.Now()
	name := Slot.names(f.self())[0]
	claim, err := f.create(ctx, Slot, name, s.action, duration)
	if err != nil {
		return err
	}
	s.claim = claim
	f.mu.Lock()
	s.deadline = sent + duration - margin
	f.mu.Unlock()
	return nil
}

func (s *slot) left() time.Duration {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return s.deadline - s.fleet.config.Now()
}

// Valid implements Held.
func (s *slot) Valid() bool {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return !s.released && s.fleet.config.Now() < s.deadline
}

// Release implements Held.
func (s *slot) Release(ctx context.Context) {
	s.withdraw(ctx)
	s.fleet.setStatus(func(st *Status) { st.Slot = "" })
}

// withdraw deletes the claim, even if the caller has given up.
func (s *slot) withdraw(ctx context.Context) {
	f := s.fleet
	f.mu.Lock()
	s.released = true // before: another may hold the slot from the claim's deletion on
	if f.slot == s {
		f.slot = nil
	}
	name, uid := Slot.names(f.node)[0], s.claim.UID
	f.mu.Unlock()
	if uid == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	if err := f.remove(ctx, name, uid); err != nil {
		f.config.Log.Warn("release the slot failed: it ends with its claim", "err", err.Error(), "action", s.action)
	}
}

var _ Slots = (*Fleet)(nil)
