package hostscan

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
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
func Within[T any](
	ctx context.Context, d Deadline, s Stage, what string, f func(context.Context) (T, error)) (T, error) {
	if d.Limit <= 0 {
		return f(ctx)
	}
	end := d.of(s)
	ctx, cancel := context.WithDeadlineCause(ctx, end,
		fmt.Errorf("%s hangs: no answer within %s", what, end.Sub(d.Begun).Round(100*time.Millisecond)))
	defer cancel()
	return host.Abandon(ctx, f)
}

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
