package kube

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// How long an answer common to all nodes is cached: 5 to 10 minutes. An error is cached only briefly, so that several
// checks that make the same request do not each repeat it.
const (
	cacheFor      = 5 * time.Minute
	cacheErrorFor = 15 * time.Second
	maxNamespaces = 256 // cached lists of ControllerRevisions
)

// cached caches the answer of ask. Concurrent callers wait for a running request, but not beyond their ctx.
type cached[T any] struct {
	ask   func(ctx context.Context) (T, error)
	keep  func(ctx context.Context, err error) time.Duration // how long an answer is cached
	holds func(at time.Time, err error) bool                 // whether it still holds, however old; nil: no
	token chan struct{}                                      // of size 1: guards the fields below and the right to ask

	value   T
	err     error
	at      time.Time // zero: there is no answer
	expires time.Time
}

func newCached[T any](ask func(ctx context.Context) (T, error)) *cached[T] {
	return &cached[T]{ask: ask, keep: keepList, token: make(chan struct{}, 1)}
}

func (c *cached[T]) get(ctx context.Context) (T, error) { return c.answer(ctx, false) }

// renew always asks, and caches the answer.
func (c *cached[T]) renew(ctx context.Context) (T, error) { return c.answer(ctx, true) }

func (c *cached[T]) answer(ctx context.Context, anew bool) (T, error) {
	select {
	case c.token <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	defer func() { <-c.token }()
	now := time.Now()
	if !anew && (now.Before(c.expires) || c.holds != nil && !c.at.IsZero() && c.holds(c.at, c.err)) {
		return c.value, c.err
	}
	c.at = now
	c.value, c.err = c.ask(ctx)
	c.expires = time.Now().Add(c.keep(ctx, c.err))
	return c.value, c.err
}

// keepList returns how long an answer common to all nodes is cached.
func keepList(ctx context.Context, err error) time.Duration {
	keep := cacheFor
	if err != nil {
		keep = cacheErrorFor
	}
	if err != nil && ctx.Err() != nil {
		return 0 // only this caller's ctx has ended
	}
	return keep + rand.N(keep)
}

// listDaemonSets lists the DaemonSets of the whole cluster from the apiserver's cache.
func (c *Client) listDaemonSets(ctx context.Context) ([]appsv1.DaemonSet, error) {
	list := &appsv1.DaemonSetList{}
	if err := c.listCached(ctx, "", "daemonsets", list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		list.Items[i].ManagedFields = nil
	}
	return list.Items, nil
}

// cachedRevisions lists the ControllerRevisions of one namespace, cached per namespace. It drops their data (a complete
// pod template each): they are compared by name, label, owner and number.
func (c *Client) cachedRevisions() func(context.Context, string) ([]appsv1.ControllerRevision, error) {
	var mu sync.Mutex // guards namespaces
	namespaces := make(map[string]*cached[[]appsv1.ControllerRevision])
	return func(ctx context.Context, namespace string) ([]appsv1.ControllerRevision, error) {
		mu.Lock()
		if len(namespaces) >= maxNamespaces {
			clear(namespaces)
		}
		entry := namespaces[namespace]
		if entry == nil {
			entry = newCached(func(ctx context.Context) ([]appsv1.ControllerRevision, error) {
				return c.listRevisions(ctx, namespace)
			})
			namespaces[namespace] = entry
		}
		mu.Unlock()
		return entry.get(ctx)
	}
}

func (c *Client) listRevisions(ctx context.Context, namespace string) ([]appsv1.ControllerRevision, error) {
	list := &appsv1.ControllerRevisionList{}
	if err := c.listCached(ctx, namespace, "controllerrevisions", list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		list.Items[i].ManagedFields = nil
		list.Items[i].Data = runtime.RawExtension{}
	}
	return list.Items, nil
}

// listCached lists from the apiserver's watch cache (resourceVersion=0): cheap for it, but possibly a little old.
func (c *Client) listCached(ctx context.Context, namespace, resource string, list objectList) error {
	what := "list " + resource
	if namespace != "" {
		what += " of namespace " + namespace
	}
	return c.list(ctx, request{
		what:  what,
		group: appsv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Param("resourceVersion",
				"0")
		},
		wait: true,
	}, list)
}
