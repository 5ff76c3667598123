package kube

import (
	"context"
	"errors"
	"fmt"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// DaemonSet gets the current state of one DaemonSet.
func (c *Client) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return getObject(ctx, c, appsv1.SchemeGroupVersion, "daemonset", namespace, name, &appsv1.DaemonSet{})
}

// UnscheduledPods lists one page of the pods of a namespace that match a label selector and are on no node.
func (c *Client) UnscheduledPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := c.list(ctx, request{
		what:  "list pods without node in " + namespace,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("pods").
				Param("fieldSelector", "spec.nodeName=").
				Param("labelSelector", selector).
				Param("limit", fmt.Sprint(pageSize))
		},
		wait: true,
	}, pods)
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pods.Items[i].ManagedFields = nil
	}
	return pods.Items, nil
}

// Exists reports whether a ConfigMap ("configmap") or Secret ("secret") exists. It does not request the data.
func (c *Client) Exists(ctx context.Context, kind, namespace, name string) (bool, error) {
	if kind != "configmap" && kind != "secret" {
		return false, fmt.Errorf("apiserver: kind %q is not asked for", clip(kind))
	}
	return c.has(ctx, request{wait: true}, kind, namespace, name)
}

// has makes a request whether an object of the core group exists.
func (c *Client) has(ctx context.Context, r request, kind, namespace, name string) (bool, error) {
	if err := validName(namespace, name); err != nil {
		return false, err
	}
	r.what, r.group = "get "+kind+" "+path.Join(namespace, name), corev1.SchemeGroupVersion
	r.build = func(r *rest.RESTClient) *rest.Request {
		return r.Get().Namespace(namespace).Resource(kind+"s").Name(name).SetHeader("Accept", metadataOnly)
	}
	err := c.send(ctx, r)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Claim gets a PersistentVolumeClaim.
func (c *Client) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	if err := validName(namespace, name); err != nil {
		return nil, err
	}
	return getObject(ctx, c, corev1.SchemeGroupVersion, "persistentvolumeclaim", namespace, name,
		&corev1.PersistentVolumeClaim{})
}

// Volume gets a PersistentVolume.
func (c *Client) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return getObject(ctx, c, corev1.SchemeGroupVersion, "persistentvolume", "", name, &corev1.PersistentVolume{})
}

// Attachment gets a VolumeAttachment.
func (c *Client) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return getObject(ctx, c, storagev1.SchemeGroupVersion, "volumeattachment", "", name,
		&storagev1.VolumeAttachment{})
}

// maxPodEvents bounds the events read for one pod.
const maxPodEvents = 100

// PodEvents lists one page of the events of one pod.
func (c *Client) PodEvents(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error) {
	if err := validName(pod.Namespace, pod.Name); err != nil {
		return nil, err
	}
	if pod.UID == "" {
		return nil, errors.New("apiserver: list events: the pod has no UID")
	}
	events := &corev1.EventList{}
	err := c.list(ctx, request{
		what:  "list events of pod " + path.Join(pod.Namespace, pod.Name),
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(pod.Namespace).Resource("events").
				Param("fieldSelector", "involvedObject.uid="+string(pod.UID)).
				Param("limit", fmt.Sprint(maxPodEvents))
		},
		wait: true,
	}, events)
	if err != nil {
		return nil, err
	}
	return events.Items, nil
}
