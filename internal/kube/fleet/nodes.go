package fleet

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Node is a Node of the cluster.
type Node struct {
	UID, Pool, Zone string
	Expected        bool // expected to have an agent
}

// nodes are the Nodes from the watch. client-go's reflector writes them.
type nodes struct {
	mu     sync.RWMutex // guards the fields below
	synced bool
	all    map[string]Node

	of func(metav1.Object) Node
}

// Nodes returns the Nodes by name. ok is false until the first list is complete.
func (c *Client) Nodes() (all map[string]Node, ok bool) {
	c.nodes.mu.RLock()
	defer c.nodes.mu.RUnlock()
	return maps.Clone(c.nodes.all), c.nodes.synced
}

// UID returns the UID of a Node, or "" if there is none. ok is false until the first list is complete.
func (c *Client) UID(node string) (uid string, ok bool) {
	c.nodes.mu.RLock()
	defer c.nodes.mu.RUnlock()
	return c.nodes.all[node].UID, c.nodes.synced
}

// Watch follows the metadata of the Nodes until ctx ends.
func (c *Client) Watch(ctx context.Context) {
	c.nodes.of = func(m metav1.Object) Node {
		l := m.GetLabels()
		return Node{string(m.GetUID()), l[c.config.PoolLabel], l[zoneLabel], c.selector.Matches(labels.Set(l))}
	}
	resource := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, o)
		},
	}
	logger := logr.FromSlogHandler(c.config.Log.Handler())
	reflector := cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, &c.nodes,
		cache.ReflectorOptions{Logger: &logger, Name: "nodes"})
	reflector.RunWithContext(klog.NewContext(ctx, logger))
}

func (n *nodes) put(object any) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[string]Node{}
	}
	n.all[m.GetName()] = n.of(m)
	return nil
}

// Add implements cache.ReflectorStore.
func (n *nodes) Add(object any) error { return n.put(object) }

// Update implements cache.ReflectorStore.
func (n *nodes) Update(object any) error { return n.put(object) }

// Delete implements cache.ReflectorStore.
func (n *nodes) Delete(object any) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, m.GetName())
	return nil
}

// Replace implements cache.ReflectorStore.
func (n *nodes) Replace(objects []any, _ string) error {
	all := make(map[string]Node, len(objects))
	for _, object := range objects {
		m, err := meta.Accessor(object)
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		all[m.GetName()] = n.of(m)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all, n.synced = all, true
	return nil
}

// Resync implements cache.ReflectorStore.
func (n *nodes) Resync() error { return nil }
