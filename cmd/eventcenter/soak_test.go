package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// Every 20 s one of three replicas is killed, or cut off from the others for 15 s, at 1,000 events per second sent to
// all: every event acknowledged by any of them is there exactly once, at the same offset on all; and a subscriber that
// changes replicas whenever its stream ends sees each offset once.
func TestReplicasSoak(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := startReplicas(t)
	ctx, cancel := context.WithCancel(t.Context())
	var now [3]atomic.Pointer[process]
	var loads [3]*load
	var running sync.WaitGroup
	defer func() {
		cancel()
		for _, l := range loads {
			l.over.Store(true)
		}
	}()
	sub := &follower{t: t, last: "0"}
	for i, p := range r.all {
		now[i].Store(p)
		loads[i] = newLoad(20).at(334)
		loads[i].names = string(rune('a'+i)) + "-"
		running.Go(func() {
			for !loads[i].over.Load() {
				loads[i].send(now[i].Load())
				time.Sleep(50 * time.Millisecond) // it is killed
			}
		})
	}
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			sub.follow(ctx, now[i%3].Load(), 0)
			time.Sleep(50 * time.Millisecond)
		}
	})
	kills, cuts := 0, 0
	for end := time.Now().Add(*soak); time.Now().Before(end) && !t.Failed(); {
		begun := time.Now()
		if victim := rand.IntN(3); kills <= cuts {
			kills++
			r.all[victim].stop(syscall.SIGKILL)
			time.Sleep(rand.N(3 * time.Second))
			r.start(victim)
			now[victim].Store(r.all[victim])
		} else {
			cuts++
			r.net.Cut(victim, true)
			time.Sleep(15 * time.Second)
			r.net.Cut(victim, false)
		}
		for _, l := range loads {
			l.wait(t, 10) // each accepts events again
		}
		time.Sleep(time.Until(begun.Add(20 * time.Second)))
	}
	all := newLoad(0)
	for _, l := range loads {
		l.over.Store(true)
	}
	cancel()
	running.Wait()
	for _, l := range loads {
		for id := range l.acked {
			all.acked[id] = true
		}
	}
	r.once(all)
	sub.once(t, r.all[0], len(readAll(t, r.all[0])))
	t.Logf("%d kills, %d partitions", kills, cuts)
}
