package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Daemon is an essential process of the node: kubelet or the container runtime.
type Daemon struct {
	Role string // "kubelet" or "runtime"
	host.Process
}

// daemonTimeout limits the search for the runtime, whose socket may have no process that accepts.
const daemonTimeout = 2 * time.Second

// Daemons finds the running ones of kubelet and the runtime; a check reports a stopped one. Daemons found are returned
// beside an error.
func Daemons(ctx context.Context, h *host.Host) ([]Daemon, error) {
	var daemons []Daemon
	var problems []error
	add := func(role string, p host.Process, err error) {
		switch {
		case err == nil:
			daemons = append(daemons, Daemon{role, p})
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) &&
			!errors.Is(err, hosterr.ErrNotConfigured):
			problems = append(problems, fmt.Errorf("find %s: %w", role, err))
		}
	}
	if h.Kubelet.Process != nil {
		p, err := h.Kubelet.Process()
		add("kubelet", p, err)
	}
	p, err := RuntimeProcess(ctx, h)
	add("runtime", p, err)
	return daemons, errors.Join(problems...)
}

// RuntimeProcess finds the runtime, and remembers it: finding it by its socket takes a connection and a scan of all its
// descriptors. An error that wraps fs.ErrNotExist or syscall.ECONNREFUSED means that none runs.
func RuntimeProcess(ctx context.Context, h *host.Host) (host.Process, error) {
	if h.Runtime.Process == nil {
		return host.Process{}, hosterr.ErrNotConfigured
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	cache := h.Processes
	if cache == nil {
		return h.Runtime.Process(ctx)
	}
	select {
	case cache.RuntimeTurn <- struct{}{}:
		defer func() { <-cache.RuntimeTurn }()
	case <-ctx.Done():
		return host.Process{}, fmt.Errorf("find the runtime: %w", ctx.Err())
	}
	if lives(h, cache.Runtime) {
		return cache.Runtime, nil
	}
	var err error
	cache.Runtime, err = h.Runtime.Process(ctx)
	return cache.Runtime, err
}

// NodePods returns the pods of this node for checks that only need to know which pods run here. It asks kubelet or, if
// kubelet denies access (an agent with kubelet's own credentials may not read its /pods), takes the apiserver's list,
// which may be some minutes old. An inspection must not use this: there the two are separate witnesses.
func NodePods(ctx context.Context, h *host.Host) ([]corev1.Pod, error) {
	ask := h.Kubelet.RecentPods
	if ask == nil {
		ask = h.Kubelet.Pods
	}
	pods, refused := host.Ask(ctx, "pods of kubelet", ask)
	if !errors.Is(refused, fs.ErrPermission) || h.Cluster.RecentPods == nil {
		return pods, refused
	}
	pods, err := h.Cluster.RecentPods(ctx)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	return pods, nil
}
