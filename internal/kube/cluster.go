package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Cluster returns the reading side of the client. What DaemonSets and ControllerRevisions return is shared between
// callers and must not be changed; it comes without managedFields, and revisions come without their data.
func (c *Client) Cluster() host.Cluster {
	return host.Cluster{
		Pods:                c.pods,
		RecentPods:          c.recentPods.get,
		Pod:                 c.pod,
		PodsNamed:           c.podsNamed,
		Node:                c.node,
		CSINode:             c.csiNode,
		DaemonSets:          c.daemonSets.get,
		ControllerRevisions: c.revisions,

		Answered: c.lastAnswer,
		Endpoint: c.endpoint,
		Reach:    c.reach,
	}
}

func (c *Client) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if err := validName(namespace, name); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	err := c.send(ctx, request{
		what:  fmt.Sprintf("get pod %s/%s", namespace, name),
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("pods").Name(name)
		},
		into: pod,
		wait: true,
	})
	if err != nil {
		return nil, err
	}
	if pod.Namespace != namespace {
		return nil, fmt.Errorf("apiserver: get pod %s/%s: answered with namespace %q", namespace, name, pod.Namespace)
	}
	if err := sameObject("pod", name, pod.Name, string(pod.UID)); err != nil {
		return nil, err
	}
	pod.ManagedFields = nil
	return pod, nil
}

func (c *Client) node(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := c.send(ctx, request{
		what:  "get node " + c.config.Node,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request { return r.Get().Resource("nodes").Name(c.config.Node) },
		into:  node,
		wait:  true,
	})
	if err != nil {
		return nil, err
	}
	if err := sameObject("node", c.config.Node, node.Name, string(node.UID)); err != nil {
		return nil, err
	}
	node.ManagedFields = nil
	return node, nil
}

func (c *Client) csiNode(ctx context.Context) (*storagev1.CSINode, error) {
	node := &storagev1.CSINode{}
	err := c.send(ctx, request{
		what:  "get csinode " + c.config.Node,
		group: storagev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request { return r.Get().Resource("csinodes").Name(c.config.Node) },
		into:  node,
		wait:  true,
	})
	if err != nil {
		return nil, err
	}
	if err := sameObject("csinode", c.config.Node, node.Name, string(node.UID)); err != nil {
		return nil, err
	}
	node.ManagedFields = nil
	return node, nil
}

// sameObject refuses an answer that is not the object asked for: "{}" with status 200 decodes as an empty one.
func sameObject(kind, want, name, uid string) error {
	if name != want || uid == "" {
		return fmt.Errorf("apiserver: get %s %s: answered with name %q, UID %q", kind, want, name, uid)
	}
	return nil
}
