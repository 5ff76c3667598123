package hostscan

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Stage is a part of a pass. Its value is the time at which it must end, in percent of the time limit of the pass.
// Requests of one stage run in parallel; Inventory relies on the order of the stages.
type Stage int

// The stages, in their order.
const (
	Local     Stage = 33 // the objects on the node
	Runtime   Stage = 55 // the runtime and containerd
	Kubelet   Stage = 70
	Owners    Stage = 77 // facts read for suspects only
	Counts    Stage = 84 // kubelet's counts, the manifests
	Apiserver Stage = 96
	Holders   Stage = 100
)

// Deadline is the time at which the stages of one pass end; never if it is zero.
type Deadline struct {
	Begun time.Time
	Limit time.Duration
}

func (d Deadline) of(s Stage) time.Time { return d.Begun.Add(d.Limit * time.Duration(s) / 100) }

// Within calls f, and abandons it when its stage is over.
func Within[T any](ctx context.Context, d Deadline, s Stage, what string, f func(context.Context) (T, error)) (T,
	error) {
	if d.Limit <= 0 {
		return f(ctx)
	}
	outer := ctx
	ctx, cancel := context.WithDeadline(ctx, d.of(s))
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1) // buffered, so that a late answer does not block
	go func() {
		value, err := f(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	select { // it may have returned because of its context, with a better error
	case a := <-answered:
		return a.value, a.err
	case <-time.After(replyGrace):
	}
	var none T
	if err := outer.Err(); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	return none, fmt.Errorf("%s hangs: no answer within %s", what, time.Since(d.Begun).Round(100*time.Millisecond))
}

// replyGrace is the time that a call has to return after its deadline.
const replyGrace = 20 * time.Millisecond

// Parallel calls f for each number below n, concurrently if there is a time limit.
func Parallel(d Deadline, n int, f func(i int)) {
	if d.Limit <= 0 {
		for i := range n {
			f(i)
		}
		return
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
