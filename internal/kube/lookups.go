package kube

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// DaemonSet gets one DaemonSet as it is now.
func (c *Client) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	set := &appsv1.DaemonSet{}
	err := c.send(ctx, request{
		what:  fmt.Sprintf("get daemonset %s/%s", namespace, name),
		group: appsv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("daemonsets").Name(name)
		},
		into: set,
		wait: true,
	})
	if err != nil {
		return nil, err
	}
	set.ManagedFields = nil
	return set, sameObject("daemonset", name, set.Name, string(set.UID))
}

// UnscheduledPods lists the pods of a namespace that match a label selector and are on no node, one page of them.
func (c *Client) UnscheduledPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	what := fmt.Sprintf("list pods without node in %s", namespace)
	err := c.send(ctx, request{
		what:  what,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("pods").
				Param("fieldSelector", "spec.nodeName=").
				Param("labelSelector", selector).
				Param("limit", fmt.Sprint(pageSize))
		},
		into: pods,
		wait: true,
	})
	if err != nil {
		return nil, err
	}
	if pods.ResourceVersion == "" {
		return nil, fmt.Errorf("apiserver: %s: the answer is no list: it has no resourceVersion", what)
	}
	for i := range pods.Items {
		pods.Items[i].ManagedFields = nil
	}
	return pods.Items, nil
}
