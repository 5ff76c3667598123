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
	return getObject(ctx, c, appsv1.SchemeGroupVersion, "daemonset", namespace, name, &appsv1.DaemonSet{})
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
	if err := checkList(what, pods); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pods.Items[i].ManagedFields = nil
	}
	return pods.Items, nil
}
