package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// metadataOnly asks for an answer without spec and status: a whole Node is 15 KB.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// NodeConditions returns the node's conditions from the apiserver.
func (c *Client) NodeConditions(ctx context.Context) ([]corev1.NodeCondition, error) {
	node, err := c.GetNode(ctx)
	if err != nil {
		return nil, err
	}
	return node.Status.Conditions, nil
}

// PatchNodeStatus applies a strategic merge patch to the status of the node. Conditions are merged by their type.
func (c *Client) PatchNodeStatus(ctx context.Context, patch []byte) error {
	return c.send(ctx, request{
		what:  "patch status of node " + c.config.Node,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.config.Node).SubResource("status").
				SetHeader("Accept", metadataOnly).Body(patch)
		},
		urgent: true,
	})
}

// PatchNode applies a JSON merge patch to the Node, except its status. With dryRun the apiserver checks everything,
// admission included, but does not store it.
func (c *Client) PatchNode(ctx context.Context, patch []byte, dryRun bool) error {
	what := "patch node " + c.config.Node
	return c.send(ctx, request{
		what:  what,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			request := r.Patch(types.MergePatchType).Resource("nodes").Name(c.config.Node).
				SetHeader("Accept", metadataOnly).Body(patch)
			if dryRun {
				request.Param("dryRun", metav1.DryRunAll)
			}
			return request
		},
		urgent: true,
	})
}

// ApplyConfigMap applies a ConfigMap, given as JSON, server-side. The agent owns the fields that it applies, and
// overrules any other writer of them.
func (c *Client) ApplyConfigMap(ctx context.Context, namespace, name string, object []byte) error {
	if err := validName(namespace, name); err != nil {
		return err
	}
	return c.send(ctx, request{
		what:  fmt.Sprintf("apply configmap %s/%s", namespace, name),
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Patch(types.ApplyYAMLPatchType).Namespace(namespace).Resource("configmaps").Name(name).
				Param("fieldManager", "nodeagent").Param("force", "true").
				SetHeader("Accept", metadataOnly).Body(object)
		},
		urgent: true,
	})
}

// CreateEvent creates an event. If it exists already, apierrors.IsAlreadyExists is true for the error.
func (c *Client) CreateEvent(ctx context.Context, event *corev1.Event) error {
	return c.send(ctx, request{
		what:  fmt.Sprintf("create event %s/%s", event.Namespace, event.Name),
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Post().Namespace(event.Namespace).Resource("events").SetHeader("Accept", metadataOnly).Body(event)
		},
	})
}
