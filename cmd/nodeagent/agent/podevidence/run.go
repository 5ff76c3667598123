package podevidence

import (
	"context"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/stuckpods"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	askLimit  = 5 * time.Second // all calls of a step
	maxInbox  = 5000            // changes that wait; later ones are dropped
	sendEvery = 2 * time.Second // on average, if a whole node is late
	sendBurst = 30
	retry     = time.Minute // between attempts to follow the runtime's events; doubled up to longest
	longest   = time.Hour
)

// Pods is the watch of the node's pods.
type Pods interface {
	Follow(follower func(pod *corev1.Pod, gone bool))
}

// Follower follows the pods of a node.
type Follower struct {
	host *host.Host
	pods Pods
	send func(event.Evidence)
	now  func() time.Time

	tracker   tracker       // only for step
	limit     *rate.Limiter // only for step
	streaming atomic.Bool   // the runtime's events are followed
	changed   chan struct{} // size 1

	mu    sync.Mutex // guards inbox
	inbox []func(*tracker)
}

// New returns a Follower that calls send for each evidence.
func New(h *host.Host, pods Pods, send func(event.Evidence)) *Follower {
	return &Follower{host: h, pods: pods, send: send, now: time.Now, tracker: tracker{map[key]*act{}},
		limit: rate.NewLimiter(rate.Every(sendEvery), sendBurst), changed: make(chan struct{}, 1)}
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	f.pods.Follow(func(pod *corev1.Pod, gone bool) {
		now := f.now()
		f.put(func(t *tracker) { t.saw(pod, gone, now) })
	})
	defer f.pods.Follow(nil)
	var stream sync.WaitGroup
	defer stream.Wait()
	if f.host.Runtime.Events != nil {
		stream.Go(func() { f.stream(ctx) })
	}
	report.Steps(ctx, f.changed, f.step)
	return nil
}

func (f *Follower) put(change func(*tracker)) {
	f.mu.Lock()
	if len(f.inbox) < maxInbox {
		f.inbox = append(f.inbox, change)
	}
	f.mu.Unlock()
	report.Wake(f.changed)
}

// stream follows the runtime's events. Without them, step asks for lists.
func (f *Follower) stream(ctx context.Context) {
	for wait := retry; ctx.Err() == nil; wait = min(2*wait, longest) {
		began := f.now()
		f.streaming.Store(true)
		// The check runtime-health reports a runtime that fails.
		_ = f.host.Runtime.Events(ctx, func(r *cri.ContainerEventResponse) { f.put(func(t *tracker) { t.took(r) }) })
		f.streaming.Store(false)
		if f.now().Sub(began) > retry {
			wait = retry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// step takes the changes, reads what the node shows of pods that start or end, and reports what is due.
func (f *Follower) step(ctx context.Context) time.Time {
	f.mu.Lock()
	inbox := f.inbox
	f.inbox = nil
	f.mu.Unlock()
	for _, change := range inbox {
		change(&f.tracker)
	}
	if len(f.tracker.acts) == 0 {
		return time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	now, list := f.now(), false
	for _, a := range f.tracker.acts {
		f.look(a, now)
		list = list || !a.sent && (!f.streaming.Load() || a.sandbox == "" && !a.e.Ended.IsZero())
	}
	if list && f.host.Runtime.Sandboxes != nil && f.host.Runtime.Containers != nil {
		if sandboxes, err := f.host.Runtime.Sandboxes(ctx); err == nil { // without them the evidence has fewer times
			containers, _ := f.host.Runtime.Containers(ctx)
			f.tracker.listed(sandboxes, containers, now)
		}
	}
	send, next := f.tracker.due(now)
	for _, a := range send {
		if f.limit.AllowN(now, 1) {
			f.describe(ctx, a)
			f.send(a.e)
		}
	}
	return next
}

// look reads the marks of an act that no event has.
func (f *Follower) look(a *act, now time.Time) {
	switch {
	case a.sent:
	case a.e.Act == creation && a.e.SandboxRequested.IsZero(): // kubelet creates the directory right before it requests the sandbox
		name := strings.Join([]string{a.e.Namespace, a.e.Name, a.e.UID}, "_")
		if stat, err := f.host.Files.Stat(path.Join("/", f.host.Paths.PodLogs, name)); err == nil && stat.IsDir() {
			a.e.SandboxRequested = stat.Born.UTC()
		}
	case a.e.Act == deletion && a.e.Unmounted.IsZero() && !a.e.SandboxStopped.IsZero():
		if mounts, err := mount.Recent(f.host); err == nil && len(podstate.MountsOf(f.host, mounts, a.e.UID)) == 0 {
			a.e.Unmounted = now.UTC()
		}
	}
}

// describe adds what the node shows of the pod now.
func (f *Follower) describe(ctx context.Context, a *act) {
	if mounts, err := mount.Recent(f.host); err == nil {
		dir := podstate.Dir(f.host, a.e.UID) + "/"
		for _, m := range podstate.MountsOf(f.host, mounts, a.e.UID) {
			a.e.Mounts = append(a.e.Mounts, strings.TrimPrefix(m.Point, dir))
		}
	}
	if a.e.Ended.IsZero() {
		is, text := stuckpods.Stage(ctx, f.host, a.pod)
		a.e.Stage, a.e.Text = string(is), text
	}
}
