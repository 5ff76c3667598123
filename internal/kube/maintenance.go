package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// kuredLock is the annotation of kured's DaemonSet that names the node, or the nodes, it reboots
// (github.com/kubereboot/kured, pkg/daemonsetlock).
const kuredLock = "weave.works/kured-node-lock"

// kuredOwner is a holder of kured's lock.
type kuredOwner struct {
	NodeID  string        `json:"nodeID"`
	Created time.Time     `json:"created"`
	TTL     time.Duration `json:"TTL"` // 0: it does not expire
}

// Kured returns a message if kured holds its lock for this node, or "". The DaemonSet is named as namespace/name; one
// that does not exist has no lock.
func (c *Client) Kured(ctx context.Context, daemonSet string) (string, error) {
	namespace, name, _ := strings.Cut(daemonSet, "/")
	var found metav1.PartialObjectMetadata
	err := c.send(ctx, request{
		what:  "get daemonset " + daemonSet,
		group: appsv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("daemonsets").Name(name).SetHeader("Accept", metadataOnly)
		},
		into:  &found,
		claim: true,
	})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	text, locked := found.Annotations[kuredLock]
	if err != nil || !locked {
		return "", err
	}
	var lock struct {
		kuredOwner
		Locks []kuredOwner `json:"locks"` // if several nodes may reboot at once
	}
	if err := json.Unmarshal([]byte(text), &lock); err != nil {
		return "", fmt.Errorf("annotation %s of daemonset %s: %w", kuredLock, daemonSet, err)
	}
	for _, owner := range append(lock.Locks, lock.kuredOwner) {
		if owner.NodeID == c.config.Node && (owner.TTL <= 0 || time.Since(owner.Created) < owner.TTL) {
			return "kured has its lock for this node since " + owner.Created.Format(time.RFC3339), nil
		}
	}
	return "", nil
}

// Medik8s returns a message if one of medik8s' operators holds the maintenance Lease of this node
// (github.com/medik8s/common, pkg/lease), or "". An expired Lease does not count; one without an expiry does.
func (c *Client) Medik8s(ctx context.Context, namespace string) (string, error) {
	name := "node-" + c.config.Node
	var lease coordinationv1.Lease
	err := c.send(ctx, request{
		what:  "get lease " + path.Join(namespace, name),
		group: coordinationv1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			return r.Get().Namespace(namespace).Resource("leases").Name(name)
		},
		into:  &lease,
		claim: true,
	})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	holder, s := "somebody", lease.Spec
	if err != nil || s.HolderIdentity != nil && *s.HolderIdentity == "" {
		return "", err
	}
	if s.HolderIdentity != nil {
		holder = *s.HolderIdentity
	}
	if s.RenewTime != nil && s.LeaseDurationSeconds != nil &&
		time.Since(s.RenewTime.Time) > time.Duration(*s.LeaseDurationSeconds)*time.Second {
		return "", nil
	}
	return clip(holder) + " holds the maintenance Lease of this node", nil
}
