package inspect

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// stage is a part of a pass. Its value is when it must end, in percent of the time limit of the pass. Requests of one
// stage run in parallel; the order of the stages is the one that Inventory relies on.
type stage int

const (
	stageLocal     stage = 33 // the objects on the node
	stageRuntime   stage = 55 // the runtime and containerd
	stageKubelet   stage = 70
	stageOwners    stage = 77 // what is only read of suspects
	stageCounts    stage = 84 // kubelet's counts, the manifests
	stageApiserver stage = 96
	stageHolders   stage = 100
)

// Within limits how long a pass may take, whatever hangs: a kernel interface, the runtime, kubelet, the apiserver. What
// has not answered by then is reported as a failure, and the report has the rest. It is for commands that end
// afterwards: a call that hangs in the kernel is abandoned. Zero, the default, means no limit but the context.
func (i *Inspector) Within(limit time.Duration) *Inspector {
	i.limit = limit
	return i
}

// deadline is when the stages of one pass end; never when it is zero.
type deadline struct {
	begun time.Time
	limit time.Duration
}

func (d deadline) of(s stage) time.Time { return d.begun.Add(d.limit * time.Duration(s) / 100) }

// within calls f, and abandons it when its stage is over.
func within[T any](ctx context.Context, d deadline, s stage, what string, f func(context.Context) (T, error)) (T,
	error) {
	if d.limit <= 0 {
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
	return none, fmt.Errorf("%s hangs: no answer within %s", what, time.Since(d.begun).Round(100*time.Millisecond))
}

// replyGrace is how long a call may take to return after its deadline.
const replyGrace = 20 * time.Millisecond

// parallel calls f for each number below n, concurrently if there is a time limit.
func parallel(d deadline, n int, f func(i int)) {
	if d.limit <= 0 {
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
