package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// The agent recognizes a node at rest by a watch of its own pods, which the apiserver indexes by spec.nodeName. While
// the watch shows no change, earlier answers of kubelet and the apiserver still hold, and are not requested again. The
// watch has no timeout of its own: the apiserver ends it after 30 to 60 minutes (--min-request-timeout), and it is
// resumed from the last bookmark.

const (
	// settleTime is how long after a change kubelet's answers may still lack it.
	settleTime = 30 * time.Second
	// activeAfterChange is how long after any change of a pod kubelet's counters are read each minute, and
	// activeWhilePending the same while a pod starts or ends: kubelet retries a failing volume every two minutes.
	activeAfterChange  = 3 * time.Minute
	activeWhilePending = 15 * time.Minute

	// watchSilence is how long a watch may be silent. A hanging watch proves nothing. Bookmarks come each minute, once
	// any pod of the cluster has changed since the watch began. If none ever does, the agent makes all requests as
	// without a watch, which only the few nodes of such a cluster do.
	watchSilence = 10 * time.Minute

	watchRetry        = 2 * time.Second
	watchLongestRetry = 5 * time.Minute
	watchRefusedRetry = 30 * time.Minute // the right to watch is missing: only an administrator can add it
)

// podChanges is the state of the watch of this node's pods. The zero value watches no pods.
type podChanges struct {
	mu          sync.Mutex // guards the fields below
	live        bool
	lastMessage time.Time               // last message of the watch
	since       time.Time               // no pod has changed since then
	event       time.Time               // last event of a pod; zero: none since the watch began
	pending     map[types.UID]time.Time // pods that start or end, with their last change

	follower func(pod *corev1.Pod, gone bool) // nil: there is none
}

// Follow calls follower for each change of a pod of this node that the watch shows; nil ends that. It must neither block nor change
// the pod.
func (c *Client) Follow(follower func(pod *corev1.Pod, gone bool)) {
	c.changes.mu.Lock()
	defer c.changes.mu.Unlock()
	c.changes.follower = follower
}

// unchangedSince reports whether no pod has changed since a time, or so shortly before it that kubelet may not have
// known yet.
func (p *podChanges) unchangedSince(at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.works() && at.Sub(p.since) >= settleTime
}

// works reports whether a watch is known to be alive. The caller must hold mu.
func (p *podChanges) works() bool { return p.live && time.Since(p.lastMessage) < watchSilence }

// quiet reports whether no pod changes, so that kubelet's counters have no reason to rise.
func (p *podChanges) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.works() || time.Since(p.event) < activeAfterChange {
		return false
	}
	for _, changed := range p.pending {
		if time.Since(changed) < activeWhilePending {
			return false
		}
	}
	return true
}

// begin takes the list from which a watch starts. Changes between two watches are unknown.
func (p *podChanges) begin(pods []corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() {
		p.event = time.Now()
	}
	p.since, p.pending = time.Now(), make(map[types.UID]time.Time)
	for i := range pods {
		if inTransition(&pods[i]) {
			p.pending[pods[i].UID] = p.since
		}
	}
}

func (p *podChanges) setLive(live bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live, p.lastMessage = live, time.Now()
}

// bookmark records that the watch is alive.
func (p *podChanges) bookmark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastMessage = time.Now()
}

func (p *podChanges) observe(kind watch.EventType, pod *corev1.Pod) (follower func(*corev1.Pod, bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.event = time.Now()
	p.since, p.lastMessage = p.event, p.event
	if kind != watch.Deleted && inTransition(pod) {
		p.pending[pod.UID] = p.event
	} else {
		delete(p.pending, pod.UID)
	}
	return p.follower
}

func inTransition(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodPending
}

// WatchPods follows the changes of the node's pods until ctx ends. If that is impossible, everything that depends on it
// makes as many requests as without a watch.
func (c *Client) WatchPods(ctx context.Context) error {
	wait, version := watchRetry, ""
	for ctx.Err() == nil {
		began := time.Now()
		next, err := c.followPods(ctx, version)
		c.changes.setLive(false)
		version = next
		switch {
		case apierrors.IsForbidden(err):
			wait = watchRefusedRetry
		case err == nil || time.Since(began) > time.Minute:
			wait = watchRetry
		default:
			wait = min(2*wait, watchLongestRetry)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Debug("watch of the node's pods ended", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): //nolint:gosec // spreads load over time, no secret
		}
	}
	return nil
}

// followPods follows the changes after a version; without one, it lists the pods first. It returns the version to
// continue from.
func (c *Client) followPods(ctx context.Context, version string) (string, error) {
	if version == "" {
		list, err := c.listPodsCached(ctx)
		if err != nil {
			return "", err
		}
		c.changes.begin(list.Items)
		version = list.ResourceVersion
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.watchAs(ctx, cancel, func(c *Client) (watch.Interface, error) {
		return c.openWatch(ctx, "pods", "spec.nodeName="+c.config.Node, version)
	})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return "", err
	}
	if err != nil {
		return version, err
	}
	defer stream.Stop()
	c.changes.setLive(true)
	for event := range stream.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Error {
			return "", fmt.Errorf("apiserver: watch pods: %w", apierrors.FromObject(event.Object))
		}
		if version = pod.ResourceVersion; version == "" {
			return "", errors.New("apiserver: watch pods: a change without resourceVersion")
		}
		if event.Type == watch.Bookmark {
			c.changes.bookmark()
		} else if follower := c.changes.observe(event.Type, pod); follower != nil {
			follower(pod, event.Type == watch.Deleted)
		}
	}
	return version, nil
}

// listPodsCached lists the node's pods from the apiserver's cache.
func (c *Client) listPodsCached(ctx context.Context) (*corev1.PodList, error) {
	list := &corev1.PodList{}
	return list, c.list(ctx, request{
		what:  "list pods of node " + c.config.Node,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+c.config.Node).
				Param("resourceVersion", "0")
		},
		wait: true,
	}, list)
}

// watchCode is the status code of the answer to a watch, or 0 without an answer.
func watchCode(err error) int {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return 200
	case errors.As(err, &status):
		return int(status.Status().Code)
	}
	return 0
}
