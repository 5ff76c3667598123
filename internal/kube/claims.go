package kube

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// CreateLease creates a Lease and returns it as stored. If it exists already, apierrors.IsAlreadyExists is true for the
// error. With dryRun the apiserver checks everything, admission included, but does not store it.
func (c *Client) CreateLease(ctx context.Context, lease *coordinationv1.Lease, dryRun bool) (*coordinationv1.Lease,
	error) {
	if err := validName(lease.Namespace, lease.Name); err != nil {
		return nil, err
	}
	what := "create lease " + path.Join(lease.Namespace, lease.Name)
	made := &coordinationv1.Lease{}
	err := c.send(ctx, request{
		what:  what,
		group: coordinationv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			request := r.Post().Namespace(lease.Namespace).Resource("leases").Body(lease)
			if dryRun {
				request.Param("dryRun", metav1.DryRunAll)
			}
			return request
		},
		into:  made,
		claim: true,
	})
	if err != nil {
		return nil, err
	}
	if made.Namespace != lease.Namespace || made.Name != lease.Name || made.UID == "" {
		return nil, fmt.Errorf("apiserver: %s: answered with name %q of namespace %q, UID %q", what, clip(made.Name),
			clip(made.Namespace), clip(string(made.UID)))
	}
	return made, nil
}

// ListLeases lists the Leases that match a label selector, consistently: all created before the call are included. The
// time is the apiserver's, from its answer; zero if the answer contains none.
func (c *Client) ListLeases(ctx context.Context, namespace, selector string) ([]coordinationv1.Lease, time.Time, error) {
	if err := validName(namespace, "claims"); err != nil {
		return nil, time.Time{}, err
	}
	leases := &coordinationv1.LeaseList{}
	var date time.Time
	err := c.list(context.WithValue(ctx, dateKey{}, &date), request{
		what:  "list leases of " + namespace,
		group: coordinationv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("leases").Param("labelSelector", selector)
		},
		claim: true,
	}, leases)
	return leases.Items, date, err
}

// DeleteLease deletes a Lease. If uid is given, only a Lease with that UID: for another one, apierrors.IsConflict is
// true for the error.
func (c *Client) DeleteLease(ctx context.Context, namespace, name, uid string) error {
	if err := validName(namespace, name); err != nil {
		return err
	}
	options := &metav1.DeleteOptions{}
	if uid != "" {
		options.Preconditions = metav1.NewUIDPreconditions(uid)
	}
	return c.send(ctx, request{
		what:  "delete lease " + path.Join(namespace, name),
		group: coordinationv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Delete().Namespace(namespace).Resource("leases").Name(name).Body(options)
		},
		claim: true,
	})
}

// HasConfigMap reports whether a ConfigMap exists, with the agent's own identity. It does not request the data.
func (c *Client) HasConfigMap(ctx context.Context, namespace, name string) (bool, error) {
	return c.has(ctx, request{claim: true}, "configmap", namespace, name)
}

// DeleteConfigMap deletes a ConfigMap, if it exists.
func (c *Client) DeleteConfigMap(ctx context.Context, namespace, name string) error {
	if err := validName(namespace, name); err != nil {
		return err
	}
	return c.send(ctx, request{
		what:  "delete configmap " + path.Join(namespace, name),
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Delete().Namespace(namespace).Resource("configmaps").Name(name)
		},
		urgent: true,
	})
}

// Nodes returns how many Nodes the cluster has. It reads one of them.
func (c *Client) Nodes(ctx context.Context) (int, error) {
	nodes := &metav1.PartialObjectMetadataList{}
	err := c.send(ctx, request{
		what:  "list nodes to count them",
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Resource("nodes").Param("limit", "1").SetHeader("Accept", metadataListOnly)
		},
		into:  nodes,
		claim: true,
	})
	switch {
	case err != nil:
		return 0, err
	case nodes.RemainingItemCount != nil:
		return len(nodes.Items) + int(*nodes.RemainingItemCount), nil
	case nodes.Continue != "" || len(nodes.Items) == 0:
		return 0, fmt.Errorf("apiserver: list nodes: it has not said how many there are")
	}
	return len(nodes.Items), nil
}

// Isolated reports whether a Node has a taint with key that keeps pods away. A Node that does not exist has none.
func (c *Client) Isolated(ctx context.Context, node, key string) (bool, error) {
	if err := validName("nodes", node); err != nil {
		return false, err
	}
	object, err := getObject(ctx, c, corev1.SchemeGroupVersion, "node", "", node, &corev1.Node{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(object.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Effect != corev1.TaintEffectPreferNoSchedule
	}), nil
}

// metadataListOnly is metadataOnly for a list.
const metadataListOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
