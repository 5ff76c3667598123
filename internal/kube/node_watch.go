package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// Others may change the agent's fields on its Node, and the Node may be deleted and registered again under its name.
// One watch of this one object, which the apiserver indexes, shows both at once. It costs a request every 30 to 60
// minutes, and the checks no longer need to read the Node. Without the right to watch, the agent reads the Node: every
// nodeReadBad while it shows a fault there, else once in a round.
const (
	nodeReadBad  = 2 * time.Minute
	nodeReadCalm = 40 * time.Minute
	// nodeSilenceBad is how long the watch may be silent while the Node shows a fault: bookmarks come each minute, and
	// kubelet writes the Node every 5. After that the Node is read.
	nodeSilenceBad = 150 * time.Second
)

// nodeSight is the last observed Node. While the watch is not live the Node may have changed.
type nodeSight struct {
	node atomic.Pointer[corev1.Node] // nil: none was observed
	live atomic.Bool                 // the watch shows each change
}

// WatchedNode returns the current Node from the watch, nil if there is no watch or no Node. It is shared, and must not
// be changed.
func (c *Client) WatchedNode() *corev1.Node {
	if !c.sight.live.Load() {
		return nil
	}
	return c.sight.node.Load()
}

// WatchNode follows the Node of this node until ctx ends. It calls see with the shared Node whenever that may have
// changed; bad reports whether the Node shows a fault.
func (c *Client) WatchNode(ctx context.Context, see func(*corev1.Node), bad func() bool) error {
	defer c.sight.live.Store(false)
	failed, version := watchRetry, ""
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		version, err = c.followNode(ctx, version, see, bad)
		c.sight.live.Store(false)
		var wait time.Duration
		switch {
		case apierrors.IsForbidden(err) && bad():
			wait = nodeReadBad
		case apierrors.IsForbidden(err):
			wait = nodeReadCalm
		case err == nil || time.Since(began) > time.Minute:
			wait, failed = watchRetry, watchRetry
		default:
			failed = min(2*failed, nodeReadBad)
			wait = failed
		}
		if err != nil && ctx.Err() == nil {
			c.log.Debug("watch of the Node ended", "err", err)
		}
		c.restNode(ctx, wait/2+rand.N(wait), bad) //nolint:gosec // spreads load over time, no secret
	}
	return nil
}

// restNode waits, but at most nodeReadBad after the Node begins to show a fault.
func (c *Client) restNode(ctx context.Context, wait time.Duration, bad func() bool) {
	for end := time.Now().Add(wait); ctx.Err() == nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
		case <-time.After(min(nodeReadBad, time.Until(end))):
			if bad() {
				return
			}
		}
	}
}

// followNode follows the changes of the Node after a version; without one, it reads the Node first. It returns the
// version to continue from.
func (c *Client) followNode(ctx context.Context, version string, see func(*corev1.Node), bad func() bool) (string, error) {
	node := c.sight.node.Load()
	if version == "" || node == nil {
		var err error
		if node, err = c.GetNode(ctx); err != nil {
			return "", err
		}
		version = node.ResourceVersion
		c.sight.node.Store(node)
		see(node)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.watchAs(ctx, cancel, func(c *Client) (watch.Interface, error) {
		return c.openWatch(ctx, "nodes", "metadata.name="+c.config.Node, version)
	})
	if err != nil {
		return "", err
	}
	defer stream.Stop()
	c.sight.live.Store(true)
	silence := time.NewTicker(nodeSilenceBad / 5)
	defer silence.Stop()
	for lastMessage := time.Now(); ; {
		select {
		case event, ok := <-stream.ResultChan():
			if !ok {
				return version, nil
			}
			lastMessage = time.Now()
			if node, err = changedNode(event, c.config.Node); err != nil {
				return "", err
			}
			version = node.ResourceVersion
			if event.Type != watch.Bookmark {
				c.sight.node.Store(node)
				see(node)
			}
		case <-silence.C:
			if silent := time.Since(lastMessage); silent > watchSilence || silent > nodeSilenceBad && bad() {
				return "", errors.New("apiserver: watch the Node: no event arrived")
			}
		}
	}
}

// changedNode returns the Node in an event.
func changedNode(event watch.Event, name string) (*corev1.Node, error) {
	node, ok := event.Object.(*corev1.Node)
	switch {
	case !ok || event.Type == watch.Error:
		return nil, fmt.Errorf("apiserver: watch the Node: %w", apierrors.FromObject(event.Object))
	case node.ResourceVersion == "":
		return nil, errors.New("apiserver: watch the Node: a change without resourceVersion")
	case event.Type == watch.Bookmark:
	case event.Type == watch.Deleted:
		return nil, errors.New("apiserver: watch the Node: it was deleted")
	case node.Name != name || node.UID == "":
		return nil, errors.New("apiserver: watch the Node: another object")
	}
	node.ManagedFields = nil
	return node, nil
}

// openWatch begins a watch with bookmarks. The apiserver decides when it ends.
func (c *Client) openWatch(ctx context.Context, resource, fields, version string) (watch.Interface, error) {
	if left := c.pause(); left > 0 {
		return nil, apierrors.NewTooManyRequests("the apiserver has asked to wait", int(left/time.Second)+1)
	}
	s, err := c.open()
	if err != nil {
		return nil, err
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return nil, fmt.Errorf("the agent's own limit of requests: %w", err)
	}
	stream, err := s.groups[corev1.SchemeGroupVersion].Get().Resource(resource).
		Param("fieldSelector", fields).Param("watch", "true").
		Param("allowWatchBookmarks", "true").Param("resourceVersion", version).MaxRetries(0).Watch(ctx)
	if c.observe != nil {
		c.observe("watch", resource, watchCode(err))
	}
	c.learn(ctx, s, err)
	if err != nil {
		return nil, fmt.Errorf("apiserver: watch %s of node %s: %w", resource, c.config.Node, err)
	}
	return stream, nil
}

// watchAs begins a watch as the node itself if possible, otherwise as the agent. giveUp cancels the attempt if the
// apiserver does not answer.
func (c *Client) watchAs(ctx context.Context, giveUp context.CancelFunc, begin func(*Client) (watch.Interface, error)) (
	watch.Interface, error) {
	limit := time.AfterFunc(2*DefaultTimeout, giveUp)
	defer limit.Stop()
	if c.asNode != nil {
		stream, err := begin(c.asNode)
		if ctx.Err() != nil || !isRefusal(err) {
			return stream, err
		}
	}
	return begin(c)
}
