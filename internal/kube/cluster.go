package kube

import (
	"context"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Cluster returns the reading side of the client. Callers share the results of DaemonSets and ControllerRevisions and
// must not change them; they have no managedFields, and revisions have no data.
func (c *Client) Cluster() host.Cluster {
	return host.Cluster{
		Pods:                c.pods,
		RecentPods:          c.recentPods.get,
		Pod:                 c.pod,
		PodsNamed:           c.podsNamed,
		Node:                c.GetNode,
		Watched:             c.WatchedNode,
		CSINode:             c.csiNode,
		DaemonSets:          c.daemonSets.get,
		ControllerRevisions: c.revisions,

		Still: c.still,

		Answered: c.lastAnswer,
		Endpoint: c.endpoint,
		Reach:    c.reach,
	}
}

func (c *Client) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if err := validName(namespace, name); err != nil {
		return nil, err
	}
	return getObject(ctx, c, corev1.SchemeGroupVersion, "pod", namespace, name, &corev1.Pod{})
}

// GetNode reads the Node of this node.
func (c *Client) GetNode(ctx context.Context) (*corev1.Node, error) {
	return getObject(ctx, c, corev1.SchemeGroupVersion, "node", "", c.config.Node, &corev1.Node{})
}

func (c *Client) csiNode(ctx context.Context) (*storagev1.CSINode, error) {
	return getObject(ctx, c, storagev1.SchemeGroupVersion, "csinode", "", c.config.Node, &storagev1.CSINode{})
}

// apiObject is any of the API's objects.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// getObject gets one object, without its managedFields. It refuses an answer other than the requested object: "{}" with
// status 200 decodes as an empty one.
func getObject[T apiObject](ctx context.Context, c *Client, group schema.GroupVersion, kind, namespace, name string,
	into T) (none T, err error) {
	what := "get " + kind + " " + path.Join(namespace, name)
	err = c.send(ctx, request{
		what:  what,
		group: group,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().NamespaceIfScoped(namespace, namespace != "").Resource(kind + "s").Name(name)
		},
		into: into,
		wait: true,
	})
	if err != nil {
		return none, err
	}
	if into.GetNamespace() != namespace || into.GetName() != name || into.GetUID() == "" {
		return none, fmt.Errorf("apiserver: %s: answered with name %q of namespace %q, UID %q", what, into.GetName(),
			into.GetNamespace(), into.GetUID())
	}
	into.SetManagedFields(nil)
	return into, nil
}
